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
    OWNS,
    SAME,
    Kind,
    Literal,
    NotByPartError,
    Sizes,
    Value,
    Want,
    by_kind,
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
    if any(one.is_list and (one.role or one.element not in (None, SAME)) for one in op.raw):
        raise WholeListsError
    return [one if one.is_list else SAME for one in op.raw]


def join(first: Value, second: Value) -> Value:
    """Returns what both values can be converted into without a collective.

    Lists must have elements of one kind, or one of them has none.

    Raises:
        NotByPartError: if there is no such value.
    """
    if first == second:
        return first
    for one, other in ((first, second), (second, first)):
        if one.kind is Kind.SAME and other.kind in (Kind.ROWS, Kind.SUM):
            return other
        if one == list_of(None) and other.is_list and not other.role:
            return other
    element = first.element
    if element and second.element and (element == second.element or element.is_list):
        return list_of(join(element, second.element))  # it may have had other numbers
    raise NotByPartError("another kind of value on another path")


def _open_shape(op: Operation, place: int) -> Want:
    """Returns the shape of elements for a new list: open where it depends on the rows."""
    first, second = op.sizes.numbers(op.node.inputs[place]) or (0, 1)
    return Literal(np.where(first == second, first, -1).tolist(), op.tensor(place).dtype)


def _element(op: Operation) -> Value:
    """Returns what the elements of the list are that an operation gets first."""
    element = op.raw[0].element
    if not element:
        raise NotByPartError("a list without elements, or of rows")
    return element


def from_tensor(op: Operation) -> Split:
    """TensorListFromTensor: the elements are along the first axis.

    A list of all rows is one of a replica's own rows, such as `tf.map_fn` takes them.
    """
    value = op.values[0]
    found = list_of(SAME)
    if value in (SAME, rows()) and is_count(op.sizes.size(op.node.inputs[0], 0), rows()):
        found = OWNS
        value = rows()
    elif value.has_rows:
        if value.axis == 0:
            raise NotByPartError("a loop over several batches")
        found = list_of(value.at(value.axis - 1))
    return op.split(found, value, _open_shape(op, 1))


def add(op: Operation) -> Split:
    """TensorListPushBack and TensorListSetItem, whose last input is an element."""
    place = len(op.raw) - 1
    found = op.raw[0]
    element = op.values[place]
    if {element.kind, found.element and found.element.kind} != {Kind.ROWS, Kind.SAME}:
        added = list_of(element)
        # What may be a shape, as for a gradient, has numbers; an element that is not set, others.
        tensor = op.tensor(place)
        is_pushed = op.kind == "TensorListPushBack"
        if is_pushed and element == SAME and tensor.dtype.is_integer and tensor.shape.rank == 1:
            numbers = op.sizes.numbers(op.node.inputs[place])
            added = added._replace(numbers=numbers and tuple(map(tuple, numbers)))
        found = join(found, added)
    element = found.element or element
    if element.has_rows and op.beside(place, element) == SAME:
        raise NotByPartError("an element without rows beside others")
    return op.split(found, found, *[SAME] * (place - 1), element)


def read(op: Operation) -> Split:
    """TensorListGetItem, TensorListPopBack, which also returns the list, and TensorListStack.

    The last input is the shape of an element: that of the replica's rows.
    """
    given, *others, _ = op.values
    if given == OWNS and op.attribute("num_elements") == -1:  # of a stack
        return op.split(rows(), given)
    element = _element(op)
    result = element
    if op.kind == "TensorListStack":
        result = element.at(element.axis + 1) if element.has_rows else element
    else:
        op.sizes.bind(op.node.outputs[-1], None, given.numbers)
    shape = op.tensor(1 + len(others))
    is_vector = shape.shape.rank == 1 and shape.op.type != "TensorListElementShape"
    return op.split(
        (given, result)[-len(op.node.outputs) :],
        given,
        *others,
        Sizes(element) if element.has_rows and is_vector else SAME,
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


_RULES: Rules = {
    "AddN AddV2 Identity StopGradient ZerosLike": joined,
    "EmptyTensorList TensorListReserve": lambda op: op.split(list_of(None), _open_shape(op, 0)),
    "OptionalFromValue": optional,
    "OptionalGetValue": lambda op: op.split(_element(op), op.raw[0]),
    "OptionalNone": lambda op: op.split(list_of(None)),
    # A list was made with a shape that is open where the elements have rows.
    "TensorListElementShape": lambda op: op.split(SAME, op.raw[0]),
    "TensorListFromTensor": from_tensor,
    "TensorListGetItem TensorListPopBack TensorListStack": read,
    "TensorListLength": lambda op: op.split(SAME, list_of(_element(op))),
    "TensorListPushBack TensorListSetItem": add,
}
LIST_RULES = by_kind(_RULES)
