"""Rules: what is known of the results of an operation, given what is known of its inputs.

`derive` is for operations of which at least one input is not SAME, and none is UNKNOWN. `RULES` has
the rule of each operation. A rule returns the value of all results, or a list with one for each, or
raises UnprovenError. All but the rules for sizes have inputs with rows; the others are plain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.rows.computed import SOME, array_of, moved, numbers_of, shapes_of, size_of
from slurm_resolver.tf.rows.operations import (
    ADDING,
    ALONG_GIVEN_AXIS,
    ALONG_LAST_AXIS,
    ALONG_TWO_AXES,
    DIVIDING,
    ENTRIES,
    FACTORS,
    JOINING,
    KEEPING,
    LINEAR,
    LOOKING_UP,
    MATRIX_PRODUCTS,
    MOVING,
    OF_SHAPE,
    REDUCING,
    TRANSPOSED_WINDOWS,
    WINDOWS,
)
from slurm_resolver.tf.rows.values import (
    BATCHES,
    MEAN,
    SAME,
    SUM,
    Found,
    Kind,
    RefutedError,
    UnprovenError,
    Value,
    Values,
    rows,
)

Rule = Callable[[Any, Values], Found]

_CONSTANT = "a constant with an entry for each row of the batch"
_MIXED = "a function of the number of rows, or of a sum over rows and of the rows"
_PLACES = "fedcba9876543210"  # names of axes, which end at the last one


def derive(operation: Any, values: Values) -> Found:
    """Returns what is known of an operation's results."""
    kinds = {value.kind for value in values}
    if kinds <= {Kind.SAME, Kind.NUMBERS} and operation.type not in OF_SHAPE:
        return numbers_of(operation, values)
    rule = RULES.get(operation.type)
    if rule is None:
        raise UnprovenError("no rule")
    if Kind.SUM in kinds:
        return _of_sum(operation, values)
    takes_sizes = operation.type in MOVING | OF_SHAPE | TRANSPOSED_WINDOWS
    if not takes_sizes and not all(value.is_plain or value.kind is Kind.ROWS for value in values):
        raise RefutedError(_MIXED)
    return rule(operation, values)


def _of_sum(operation: Any, values: Values) -> Value:
    """Returns the value of a linear function of sums over rows.

    That is a factor times a sum, or sums of the same power that are added or moved.
    """
    if any(value.kind is Kind.ROWS for value in values):
        raise RefutedError(_MIXED)
    sums = [value for value in values if value.kind is Kind.SUM]
    others = [pair for pair in zip(operation.inputs, values) if pair[1].kind is not Kind.SUM]
    begins = values[0].kind is Kind.SUM  # whether the first input is a sum
    joins = operation.type in JOINING
    if operation.type in FACTORS:
        degrees = [0 if value.is_plain else value.degree for _, value in others]
        if len(sums) == 1 and None not in degrees and (begins or operation.type not in DIVIDING):
            sign = -1 if operation.type in DIVIDING else 1
            return Value(Kind.SUM, sums[0].power + sign * sum(degrees))
    elif operation.type in LINEAR and (begins or joins) and len(set(sums)) == 1:
        # The mean of a constant is that constant, but its sum is not.
        adds = joins and any(np.any(tf.get_static_value(tensor) != 0) for tensor, _ in others)
        is_plain = all(value.is_plain for _, value in others)
        types = [operation.inputs[0].dtype, operation.outputs[0].dtype]
        rounds = [one.is_floating for one in types] == [True, False]
        if is_plain and (sums[0].is_mean or not adds) and not rounds:
            return sums[0]
    raise RefutedError("a function of a sum or mean over the rows, and not linear in it alone")


# --- Axes ----------------------------------------------------------------------------------------


def _axes(operation: Any, place: int) -> list[int]:
    """Returns the axes of the first input that another input names, each at least 0."""
    axes = array_of(operation.inputs[place], SAME, BATCHES[0])
    return [int(axis) % operation.inputs[0].shape.rank for axis in np.ravel(axes)]


def _combined(values: Values, axes: Iterable[int], place: int = 0) -> Value:
    """Returns the value of what combines entries along axes, none of which may be the rows'.

    Args:
        axes: of the input with the rows.
        place: of this input; others are constants, or have the same rows.
    """
    value = values[place]
    if {other for other in values if other.kind is Kind.ROWS} != {value}:
        raise RefutedError("rows with other rows")
    if value.axis in axes:
        raise RefutedError("all rows together")
    return value


def _combining(first: int, place: int = 0) -> Rule:
    """Makes a rule for what combines entries along the axes from `first`, an index, to the last."""

    def rule(operation: Any, values: Values) -> Value:
        rank = operation.inputs[place].shape.rank
        return _combined(values, range(rank)[first:], place)

    return rule


def _reduction(operation: Any, values: Values) -> Value:
    """Rule for what reduces axes: along that of the rows, only a sum or a mean is known."""
    value = values[0]
    axes = set(_axes(operation, 1))
    if value.axis in axes:
        if operation.type not in ("Sum", "Mean"):
            raise RefutedError(SOME)
        return SUM if operation.type == "Sum" else MEAN
    if operation.node_def.attr["keep_dims"].b:
        return value
    return value.shifted(-sum(axis < value.axis for axis in axes))


def _one_hot(operation: Any, values: Values) -> Value:
    """Rule for OneHot, which adds an axis."""
    return values[0].shifted(0 <= operation.get_attr("axis") <= values[0].axis)


def _contraction(operation: Any, values: Values, equation: str) -> Value:
    """Returns the value of a product that is summed over the axes which the result lacks.

    Args:
        equation: names the axes, as in `tf.einsum`; "..." counts from the last one.
    """
    labels = []
    shapes = [tensor.shape for tensor in (*operation.inputs, *operation.outputs)]
    for term, shape in zip(re.split(",|->", equation), shapes):
        hidden = len(shape) - len(term) + len("...")
        labels.append(term.replace("...", _PLACES[len(_PLACES) - hidden :]))
    given = list(zip(labels, values, shapes))
    found = {(of[value.axis], value.layout) for of, value, _ in given if value.layout}
    if len(found) != 1:
        raise RefutedError("rows with other rows")
    label, layout = found.pop()
    for of, value, shape in given:
        if not value.layout and label in of and shape[of.index(label)] != 1:
            raise RefutedError(_CONSTANT)
    axis = labels[-1].find(label)
    return SUM if axis < 0 else Value(Kind.ROWS, axis=axis, layout=layout)


def _entries(operation: Any, values: Values) -> Value:
    """Rule for a function of the entries at one place, counted from the last axis."""
    return _contraction(operation, values, ",".join(["..."] * len(values)) + "->...")


def _matrix_product(operation: Any, values: Values) -> Value:
    """Rule for MatMul and BatchMatMul, whose first axes are those of a batch of matrices."""
    attributes = operation.node_def.attr
    left = attributes["transpose_a"].b or attributes["adj_x"].b
    right = attributes["transpose_b"].b or attributes["adj_y"].b
    equation = f"...{'YX' if left else 'XY'},...{'ZY' if right else 'YZ'}->...XZ"
    return _contraction(operation, values, equation)


# --- What has a given shape ----------------------------------------------------------------------


def _of_shape(operation: Any, values: Values) -> Found:
    """Rule for what has a shape with rows, and is random or the same everywhere.

    The shape is the first input; of BroadcastTo and Tile, it is the second.
    """
    if values[0].kind is Kind.ROWS:
        return moved(operation, values)
    of_constant = operation.type in MOVING
    others = list(values)
    shape = others.pop(of_constant)
    if shape.kind is Kind.ROWS or not all(value.is_plain for value in others):
        raise RefutedError("other entries for each row")
    if shape.is_plain:
        if of_constant or operation.type == "Fill":
            return SAME
        raise UnprovenError("random numbers that do not depend on the number of rows")
    sizes = np.array(shape.numbers)
    of_rows = sizes / [[batch.rows] for batch in BATCHES]
    counted = np.flatnonzero(sizes[0] != sizes[-1])
    if len(counted) != 1 or np.ptp(of_rows[:, counted]):
        raise RefutedError("a different number of entries than rows")
    axis = int(counted[0])
    if of_constant:
        rank = sizes.shape[1]
        if ([1] * rank + operation.inputs[0].shape.as_list())[axis - rank] != 1:
            raise RefutedError(_CONSTANT)
    return rows(axis, int(of_rows[0][axis]))


def _gather(operation: Any, values: Values) -> Found:
    """Rule for GatherV2: in each row, of a table, or of other axes than that of the rows."""
    data, indices = values[:2]
    (axis,) = _axes(operation, 2)
    batch = operation.get_attr("batch_dims")
    if data == indices and data.axis < batch:
        return data
    if data.kind is Kind.ROWS:
        return moved(operation, values)
    if batch:
        raise RefutedError("rows that are picked by their numbers")
    return indices.shifted(axis)


# --- TensorLists ---------------------------------------------------------------------------------


def _set_element(operation: Any, values: Values) -> Value:
    """Rule for TensorListSetItem and TensorListPushBack."""
    return join(values[0], values[-1].shifted(1))


def join(one: Value, other: Value) -> Value:
    """Returns what is known of a tensor that is one of two, such as a variable of a loop."""
    if one == other:
        return one
    if one.is_plain and other.is_plain:
        return SAME
    for value, wanted in ((one, other), (other, one)):
        joined = wanted.is_mean or wanted.kind is Kind.ROWS
        if wanted.kind is Kind.UNKNOWN or (value.is_plain and joined):
            return wanted
    raise RefutedError("rows on one path, and something else on another")


# --- The table -----------------------------------------------------------------------------------

RULES: dict[str, Rule] = {
    **dict.fromkeys(KEEPING, lambda _, values: values[0]),
    **dict.fromkeys(ENTRIES | ADDING | DIVIDING, _entries),
    **dict.fromkeys(REDUCING, _reduction),
    **dict.fromkeys(MATRIX_PRODUCTS, _matrix_product),
    **dict.fromkeys(WINDOWS, _combining(1)),
    **dict.fromkeys(TRANSPOSED_WINDOWS, _combining(1, place=2)),
    **dict.fromkeys(ALONG_LAST_AXIS, _combining(-1)),
    **dict.fromkeys(ALONG_TWO_AXES, _combining(-2)),
    **dict.fromkeys(ALONG_GIVEN_AXIS, lambda one, values: _combined(values, _axes(one, 1))),
    **dict.fromkeys(MOVING, moved),
    **dict.fromkeys(OF_SHAPE, _of_shape),
    **dict.fromkeys(LOOKING_UP, lambda _, values: values[1]),
    "Bitcast": lambda _, values: values[0],
    "Einsum": lambda one, values: _contraction(one, values, one.get_attr("equation").decode()),
    "GatherV2": _gather,
    "Mul": _entries,
    "OneHot": _one_hot,
    "Rank": lambda *_: SAME,
    "ReverseSequence": lambda one, values: _combined(values, [one.get_attr("seq_dim")]),
    "Shape": shapes_of,
    "ShapeN": shapes_of,
    "Size": size_of,
    "TensorListFromTensor": lambda _, values: _combined(values, [0]),
    "TensorListGetItem": lambda _, values: values[0].shifted(-1),
    "TensorListLength": lambda *_: SAME,
    "TensorListPushBack": _set_element,
    "TensorListSetItem": _set_element,
    "TensorListStack": lambda _, values: values[0],
}
