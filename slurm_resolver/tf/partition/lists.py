"""Rules for TensorLists, in which loops keep the tensors of their rounds.

The elements of a list are all SAME, or all have the same rows, or are of one row each. A list
without elements becomes any of these. The shape of elements that is given to TensorFlow leaves the
size of the rows open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.operation import Operation, size_at
from slurm_resolver.tf.partition.sizes import COUNTS, is_count
from slurm_resolver.tf.partition.values import (
    OWN,
    SAME,
    Kind,
    Literal,
    NotByPartError,
    Split,
    Value,
    Want,
    as_tuple,
    join,
    list_of,
    rows,
)


def open_shape(op: Operation, place: int) -> Want:
    """Returns the shape of elements for a new list: open where it depends on the rows."""
    numbers = op.sizes.numbers(op.node.inputs[place])
    if numbers is not None:
        first, second = numbers
        return Literal(
            np.where(
                first == second,
                first,
                -1,
            ).astype(first.dtype)
        )
    shape = op.node.operation.inputs[place].shape
    if shape.rank == 1 and shape[0] is not None:
        return Literal(
            np.full(
                shape[0],
                -1,
                op.dtype(place).as_numpy_dtype,
            )
        )
    return Literal(np.array(-1, op.dtype(place).as_numpy_dtype))


def element_shape(op: Operation, place: int) -> Want:
    """Returns the shape of elements that are read from the list: those of the replica's rows."""
    element = op.raw[0].element
    tensor = op.node.operation.inputs[place]
    is_vector = tensor.shape.rank == 1 and tensor.op.type != "TensorListElementShape"
    if element is None or not element.has_rows or not is_vector:
        return SAME
    return size_at(element)


def element_of(value: Value) -> Value:
    """Returns what the elements of a list are."""
    if value.element is None:
        raise NotByPartError("a list without elements")
    if value.element.kind in (Kind.OWN, Kind.PLACE):
        raise NotByPartError("a list of rows")
    return value.element


def new(op: Operation) -> Split:
    """EmptyTensorList and TensorListReserve."""
    return op.split(list_of(None), open_shape(op, 0))


def from_tensor(op: Operation) -> Split:
    """TensorListFromTensor: the elements are along the first axis.

    A list of all rows is one of a replica's own rows, such as `tf.map_fn` takes them.
    """
    value = op.values[0]
    is_of_rows = is_count(op.sizes.size(op.node.inputs[0], 0), 1, 1)
    if is_of_rows and value in (SAME, rows()):
        element = OWN
        value = rows()
    elif not value.has_rows:
        element = SAME
    elif value.axis == 0:
        raise NotByPartError("a loop over several batches")
    else:
        element = value.at(value.axis - 1)
    return op.split(
        list_of(element),
        value,
        open_shape(op, 1),
    )


def add(op: Operation, place: int) -> Split:
    """TensorListPushBack and TensorListSetItem.

    Args:
        place: of the element.
    """
    given = op.raw[0]
    value = op.raw[place] if op.raw[place].is_list else op.values[place]
    tensor = op.node.operation.inputs[place]
    if value == SAME and tensor.dtype in (tf.int32, tf.int64) and tensor.shape.rank == 1:
        numbers = op.sizes.numbers(op.node.inputs[place])  # such as a shape for the gradient
        if numbers is not None:
            value = SAME._replace(numbers=(as_tuple(numbers[0]), as_tuple(numbers[1])))
    element = join(given.element, value)
    assert element is not None
    if given.element is not None and element.kind is not given.element.kind:
        element = given.element  # the others are in the list already
    wants: list[Want] = [SAME] * len(op.values)
    wants[0] = list_of(element)
    wants[place] = element._replace(numbers=None)
    if element.has_rows:
        wants[place] = op.beside(place, element)
        if wants[place] == SAME:
            raise NotByPartError("an element without rows beside others")
    return op.split(list_of(element), *wants)


def noted(op: Operation, output: int, element: Value) -> Value:
    """Returns what is known of an element that is read; its numbers are noted."""
    if element.numbers is not None:
        op.sizes.bind(
            op.node.outputs[output],
            None,
            element.numbers,
        )
    return element._replace(numbers=None)


def get(op: Operation) -> Split:
    """TensorListGetItem."""
    element = noted(
        op,
        0,
        element_of(op.raw[0]),
    )
    return op.split(
        element,
        op.raw[0],
        SAME,
        element_shape(op, 2),
    )


def pop(op: Operation) -> Split:
    """TensorListPopBack."""
    element = noted(
        op,
        1,
        element_of(op.raw[0]),
    )
    return op.split(
        [op.raw[0], element],
        op.raw[0],
        element_shape(op, 1),
    )


def stack(op: Operation) -> Split:
    """TensorListStack."""
    if op.raw[0] == list_of(OWN) and op.attribute("num_elements") < 0:
        return op.split(rows(), op.raw[0])
    element = element_of(op.raw[0])._replace(numbers=None)
    result = element.at(element.axis + 1) if element.has_rows else element
    return op.split(
        result,
        op.raw[0],
        element_shape(op, 1),
    )


def told_shape(op: Operation) -> Split:
    """TensorListElementShape: open where the elements have rows."""
    element = op.raw[0].element

    def make(emission: Any, node: Any, inputs: list[Any]) -> list[Any]:
        (sizes,) = emission.create(node, inputs)
        if element is None or not element.has_rows or sizes.shape.rank == 0:
            return [sizes]
        before = sizes[: element.axis]
        after = sizes[element.axis + 1 :]
        return [tf.concat([before, tf.constant([-1], sizes.dtype), after], axis=0)]

    return op.split(
        SAME,
        op.raw[0],
        make=make,
    )


def length(op: Operation) -> Split:
    """TensorListLength: the number of all rows, of a list of rows."""
    if op.raw[0] != list_of(OWN):
        return op.split(SAME, op.raw[0])
    op.sizes.bind(op.node.outputs[0], None, COUNTS)
    return op.split(
        SAME,
        op.raw[0],
        make=lambda emission, _, __: [emission.rows.total],
    )


def joined(op: Operation) -> Split:
    """Identity, ZerosLike and sums of lists."""
    found: Value | None = None
    for value in op.raw:
        found = join(found, value)
    assert found is not None
    if found == list_of(OWN) and list_of(None) in op.raw:
        raise NotByPartError("a list of rows")
    return op.split(found, *[found] * len(op.raw))


def optional(op: Operation) -> Split:
    """OptionalFromValue, in which a condition keeps a tensor for its gradient: a list of one."""
    if len(op.raw) != 1:
        raise NotByPartError("several values")
    return op.split(list_of(op.raw[0]), op.raw[0])


def value_of_optional(op: Operation) -> Split:
    """OptionalGetValue."""
    return op.split(element_of(op.raw[0]), op.raw[0])


LIST_RULES: dict[str, Callable[[Operation], Split]] = {
    "AddN": joined,
    "AddV2": joined,
    "EmptyTensorList": new,
    "Identity": joined,
    "OptionalFromValue": optional,
    "OptionalGetValue": value_of_optional,
    "OptionalNone": lambda op: op.split(list_of(None)),
    "StopGradient": joined,
    "TensorListElementShape": told_shape,
    "TensorListFromTensor": from_tensor,
    "TensorListGetItem": get,
    "TensorListLength": length,
    "TensorListPopBack": pop,
    "TensorListPushBack": lambda op: add(op, 1),
    "TensorListReserve": new,
    "TensorListSetItem": lambda op: add(op, 2),
    "TensorListStack": stack,
    "ZerosLike": joined,
}
