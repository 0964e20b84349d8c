"""Rules for TensorLists, in which loops keep the tensors of their rounds.

The elements of a list are all SAME, or all have the same rows, or are of one row each. A list
without elements becomes any of these. The shape of elements that is given to TensorFlow leaves the
size of the rows open.
"""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.emission import Split
from slurm_resolver.tf.partition.operation import Operation, Rules
from slurm_resolver.tf.partition.sizes import is_count
from slurm_resolver.tf.partition.values import (
    OWN,
    SAME,
    Kind,
    Literal,
    NotByPartError,
    Sizes,
    Value,
    Want,
    as_tuple,
    list_of,
    rows,
)


class WholeListsError(Exception):
    """Raised if a plan has to begin again, with all lists, conditions and loops whole."""


def uses_lists(op: Operation) -> bool:
    """Whether an operation gets or returns a list."""
    return any(one.is_list for one in op.raw) or any(
        one.dtype == tf.variant for one in op.traced.outputs
    )


def wholes(op: Operation) -> list[Value]:
    """Returns what the inputs of an operation are if they are whole.

    Raises:
        WholeListsError: if one is a list of parts.
    """
    if any(one.is_list and one.element not in (None, SAME) for one in op.raw):
        raise WholeListsError
    return [one if one.is_list else SAME for one in op.raw]


def join(first: Value, second: Value) -> Value:
    """Returns what both values can be converted into without a collective.

    Raises:
        NotByPartError: if there is no such value.
    """
    if first == second:
        return first
    if first.is_list and second.is_list:
        return _joined_lists(first, second)
    for one, other in ((first, second), (second, first)):
        if one.kind is Kind.SAME and other.kind in (Kind.ROWS, Kind.SUM):
            return other
    raise NotByPartError("it has rows on one path only")


def _joined_lists(first: Value, second: Value) -> Value:
    """Returns a list of what two lists have, which are of one kind; or one of them has nothing.

    Raises:
        NotByPartError: if they are not.
    """
    if not (first.element and second.element):
        found = first if first.element else second
        if found.element == OWN:
            raise NotByPartError("a list of rows")
        return found
    if first.element.is_list and second.element.is_list:
        return list_of(join(first.element, second.element))
    if first.element != second.element:
        raise NotByPartError("a list with elements of several kinds")
    return first if first == second else list_of(first.element)


def open_shape(op: Operation, place: int) -> Want:
    """Returns the shape of elements for a new list: open where it depends on the rows."""
    first, second = op.sizes.numbers(op.node.inputs[place]) or (0, 1)
    return Literal(
        as_tuple(np.where(first == second, first, -1)),
        op.tensor(place).dtype,
    )


def element_shape(op: Operation, place: int, element: Value) -> Want:
    """Returns the shape of elements that are read from the list: those of the replica's rows."""
    tensor = op.tensor(place)
    is_vector = tensor.shape.rank == 1 and tensor.op.type != "TensorListElementShape"
    return Sizes(element) if element.has_rows and is_vector else SAME


def element_of(op: Operation) -> Value:
    """Returns what the elements of the list are that an operation gets first."""
    element = op.raw[0].element
    if not element or element.kind in (Kind.OWN, Kind.PLACE):
        raise NotByPartError("a list without elements, or of rows")
    return element


def new(op: Operation) -> Split:
    """EmptyTensorList and TensorListReserve."""
    return op.split(list_of(None), open_shape(op, 0))


def from_tensor(op: Operation) -> Split:
    """TensorListFromTensor: the elements are along the first axis.

    A list of all rows is one of a replica's own rows, such as `tf.map_fn` takes them.
    """
    value = op.values[0]
    element = SAME
    if value in (SAME, rows()) and is_count(op.sizes.size(op.node.inputs[0], 0), rows()):
        element = OWN
        value = rows()
    elif value.has_rows:
        if value.axis == 0:
            raise NotByPartError("a loop over several batches")
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
    element = op.values[place]
    is_mixed = {element.kind, given.element and given.element.kind} == {Kind.ROWS, Kind.SAME}
    found = given if is_mixed else _joined_lists(given, _list_of_input(op, place))
    element = found.element or element
    if element.has_rows and op.beside(place, element) == SAME:
        raise NotByPartError("an element without rows beside others")
    return op.split(found, found, *[SAME] * (place - 1), element)


def _list_of_input(op: Operation, place: int) -> Value:
    """Returns a list of an input, with its numbers if it may be a shape, as for a gradient."""
    found = list_of(op.values[place])
    tensor = op.tensor(place)
    if found.element != SAME or not tensor.dtype.is_integer or tensor.shape.rank != 1:
        return found
    numbers = op.sizes.numbers(op.node.inputs[place])
    return found._replace(numbers=numbers and tuple(map(as_tuple, numbers)))


def read(op: Operation) -> Split:
    """TensorListGetItem and TensorListPopBack, which also returns the list."""
    given, *others, _ = op.values  # the last input is the shape of the element
    element = element_of(op)
    op.sizes.bind(
        op.node.outputs[-1],
        None,
        given.numbers,
    )
    return op.split(
        (given, element)[-len(op.node.outputs) :],
        given,
        *others,
        element_shape(
            op,
            1 + len(others),
            element,
        ),
    )


def stack(op: Operation) -> Split:
    """TensorListStack."""
    if op.raw[0] == list_of(OWN) and op.attribute("num_elements") < 0:
        return op.split(rows(), op.raw[0])
    element = element_of(op)
    return op.split(
        element.at(element.axis + 1) if element.has_rows else element,
        op.raw[0],
        element_shape(
            op,
            1,
            element,
        ),
    )


def joined(op: Operation) -> Split:
    """Identity, ZerosLike and sums of lists."""
    found = functools.reduce(join, op.raw)
    return op.split(found, *[found] * len(op.raw))


def optional(op: Operation) -> Split:
    """OptionalFromValue, in which a condition keeps a tensor for its gradient: a list of one."""
    if len(op.raw) != 1:
        raise NotByPartError("several values")
    return op.split(list_of(op.raw[0]), op.raw[0])


LIST_RULES: Rules = {
    "AddN": joined,
    "AddV2": joined,
    "EmptyTensorList": new,
    "Identity": joined,
    "OptionalFromValue": optional,
    "OptionalGetValue": lambda op: op.split(element_of(op), op.raw[0]),
    "OptionalNone": lambda op: op.split(list_of(None)),
    "StopGradient": joined,
    # A list was made with a shape that is open where the elements have rows.
    "TensorListElementShape": lambda op: op.split(SAME, op.raw[0]),
    "TensorListFromTensor": from_tensor,
    "TensorListGetItem": read,
    "TensorListLength": lambda op: op.split(SAME, list_of(element_of(op))),
    "TensorListPopBack": read,
    "TensorListPushBack": lambda op: add(op, 1),
    "TensorListReserve": new,
    "TensorListSetItem": lambda op: add(op, 2),
    "TensorListStack": stack,
    "ZerosLike": joined,
}
