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

from slurm_resolver.tf.rows.computed import array_of, moved, numbers_of, shapes_of, size_of
from slurm_resolver.tf.rows.operations import (
    ADDING,
    ALONG_GIVEN_AXIS,
    ALONG_LAST_AXIS,
    COMBINING,
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
    PAIRED_WINDOWS,
    REDUCING,
    SETTING,
    TRANSPOSED_WINDOWS,
    WINDOWS,
)
from slurm_resolver.tf.rows.values import (
    BATCHES,
    COMPONENT,
    MEAN,
    SAME,
    SUM,
    Found,
    Kind,
    RefutedError,
    UnprovenError,
    Value,
    Values,
    first_unknown,
    rows,
    unknown,
)

Rule = Callable[[Any, Values], Found]

_CONSTANT = "a constant with an entry for each row of the batch"
_MIXED = "a function of the number of rows, or of a sum over rows and of the rows"
_ALL = range(16)  # axes
_LATER = _ALL[1:]
_PLACES = "fedcba9876543210"  # names of axes, which end at the last one


def derive(operation: Any, values: Values) -> Found:
    """Returns what is known of an operation's results."""
    kinds = {value.kind for value in values}
    if kinds <= {Kind.SAME, Kind.NUMBERS} and operation.type not in OF_SHAPE:
        return numbers_of(operation, values)
    rule = RULES.get(operation.type)
    if rule is None or (Kind.COMPONENT in kinds and rule is not _dense):
        raise UnprovenError("no rule")
    if Kind.SUM in kinds:
        return _of_sum(operation, values)
    takes_sizes = operation.type in MOVING | OF_SHAPE | TRANSPOSED_WINDOWS
    if not takes_sizes and any(value.numbers and not value.is_plain for value in values):
        raise RefutedError(_MIXED)
    return rule(operation, values)


def _of_sum(operation: Any, values: Values) -> Value:
    """Returns the value of a linear function of sums over rows.

    That is a factor times a sum, or sums of the same degree that are added or moved. A constant has
    the degree of a mean: the mean of a constant is that constant, but its sum is not.
    """
    sums = [value for value in values if value.kind is Kind.SUM]
    degrees: list[Any] = [value.degree for value in values]
    # Integers may have been rounded.
    if None not in degrees and operation.outputs[0].dtype.is_floating:
        if operation.type in FACTORS and len(sums) == 1:
            return Value(Kind.SUM, sum(degrees))
        if operation.type in DIVIDING and sums == values[:1]:
            return Value(Kind.SUM, degrees[0] - degrees[1])
        if operation.type in JOINING and len(set(degrees)) == 1:
            return Value(Kind.SUM, degrees[0])
        if operation.type in LINEAR and values[0] in sums and not any(degrees[1:]):
            return values[0]
    raise RefutedError("a function of a sum or mean over the rows, and not linear in it alone")


# --- Axes ----------------------------------------------------------------------------------------


def _rank(operation: Any) -> int:
    return len(operation.inputs[0].shape)


def _axes(operation: Any, place: int) -> list[int]:
    """Returns the axes of the first input that another input names, each at least 0."""
    axes = array_of(operation.inputs[place], SAME)
    return [int(axis) % _rank(operation) for axis in np.ravel(axes)]


def _combined(values: Values, axes: Iterable[int]) -> Value:
    """Returns the value of what combines entries along axes, none of which may be the rows'.

    The rows are those of the first input; others are constants, or have the same rows.
    """
    value = values[0]
    if any(other.layout and other != value for other in values) or not value.layout:
        raise RefutedError("rows with other rows")
    if value.axis in axes:
        raise RefutedError("all rows together")
    return value


def _reduction(operation: Any, values: Values) -> Value:
    """Rule for what reduces axes: along that of the rows, only a sum or a mean is known."""
    value = values[0]
    axes = set(_axes(operation, 1))
    if value.axis in axes:
        if operation.type not in ("Sum", "Mean"):
            raise RefutedError("all rows together")
        dtype = operation.inputs[0].dtype
        if dtype.is_integer and (operation.type == "Mean" or dtype.size < tf.int32.size):
            raise RefutedError("integers that are rounded, or overflow")
        return SUM if operation.type == "Sum" else MEAN
    if operation.node_def.attr["keep_dims"].b:
        return value
    return value.shifted(-sum(axis < value.axis for axis in axes))


def _windows(_: Any, values: Values) -> Value:
    """Rule for what combines the entries of each row, with a filter that is no row."""
    if any(other.layout for other in values[1:]):
        raise RefutedError("rows with other rows")
    return _combined(values[:1], _LATER)


def _contraction(operation: Any, values: Values, equation: str) -> Value:
    """Returns the value of a product that is summed over the axes which the result lacks.

    Args:
        equation: names the axes, as in `tf.einsum`; "..." counts from the last one.
    """
    labels = []
    for term, tensor in zip(re.split(",|->", equation), (*operation.inputs, *operation.outputs)):
        hidden = len(tensor.shape) - len(term) + len("...")
        labels.append(term.replace("...", _PLACES[len(_PLACES) - hidden :]))
    found = {(of[value.axis], value.layout) for of, value in zip(labels, values) if value.layout}
    if len(found) != 1:
        raise RefutedError("rows with other rows")
    label, layout = found.pop()
    for of, value, tensor in zip(labels, values, operation.inputs):
        if not value.layout and label in of and tensor.shape[of.index(label)] != 1:
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
    of_constant = operation.type in MOVING
    if of_constant and values[0].layout:
        return moved(operation, values)
    others = list(values)
    shape = others.pop(of_constant)
    if shape.is_plain and (of_constant or operation.type == "Fill"):
        return numbers_of(operation, values)
    if shape.layout or not all(value.is_plain for value in others):
        raise RefutedError("other entries for each row")
    if shape.is_plain:
        raise UnprovenError("random numbers that do not depend on the number of rows")
    counted = np.flatnonzero(np.ptp(shape.numbers, axis=0))
    axis = int(counted[0])
    counts = {sizes[axis] / batch for sizes, batch in zip(shape.numbers, BATCHES)}
    if len(counted) != 1 or len(counts) != 1:
        raise RefutedError("a different number of entries than rows")
    if of_constant:
        rank = len(shape.numbers[0])
        if ([1] * rank + operation.inputs[0].shape.as_list())[axis - rank] != 1:
            raise RefutedError(_CONSTANT)
    return rows(axis, int(counts.pop()))


def _gather(operation: Any, values: Values) -> Found:
    """Rule for GatherV2: in each row, of a table, or of other axes than that of the rows."""
    data, indices = values[:2]
    (axis,) = _axes(operation, 2)
    batch = operation.get_attr("batch_dims")
    if data == indices and data.axis < batch:
        return data
    if indices.is_plain:
        return moved(operation, values)
    if batch or data.layout:
        raise RefutedError("rows that are picked by their numbers")
    return indices.shifted(axis)


def _dense(operation: Any, values: Values) -> Value:
    """Rule for what makes dense rows of a sparse tensor, whose parts are the first three inputs."""
    turns = operation.node_def.attr["adjoint_a"].b
    if turns or values[:3] != [COMPONENT] * 3 or not values[3].is_plain:
        raise UnprovenError("no rule")
    return rows()


def _list(operation: Any, values: Values) -> Value:
    """Rule for TensorListFromTensor, which splits the first axis."""
    if not values[0].axis:
        raise UnprovenError("a loop over the rows")
    return values[0]


def join(tensor: Any, one: Value, other: Value) -> Value:
    """Returns what is known of a tensor that is one of two, such as a variable of a loop.

    A list without elements may get elements with rows.
    """
    if one == other:
        return one
    if one.is_plain and other.is_plain:
        return SAME
    is_list = tensor.dtype == tf.variant
    for value, wanted in ((one, other), (other, one)):
        if value.is_plain and (wanted.is_mean or (wanted.layout and is_list)):
            return wanted
    error = RefutedError("rows on one path, and something else on another")
    return first_unknown((one, other)) or unknown(tensor.op, error)


# --- The table -----------------------------------------------------------------------------------

RULES: dict[str, Rule] = {
    **dict.fromkeys(KEEPING, lambda _, values: values[0]),
    **dict.fromkeys(ENTRIES | ADDING | DIVIDING | {"Mul"}, _entries),
    **dict.fromkeys(REDUCING, _reduction),
    **dict.fromkeys(MATRIX_PRODUCTS, _matrix_product),
    **dict.fromkeys(WINDOWS, _windows),
    **dict.fromkeys(PAIRED_WINDOWS, lambda _, values: _combined(values, _LATER)),
    **dict.fromkeys(TRANSPOSED_WINDOWS, lambda one, values: _windows(one, values[::-1])),
    **dict.fromkeys(ALONG_LAST_AXIS, lambda one, values: _combined(values, [_rank(one) - 1])),
    **dict.fromkeys(ALONG_GIVEN_AXIS, lambda one, values: _combined(values, _axes(one, 1))),
    **dict.fromkeys(COMBINING, lambda _, values: _combined(values, _ALL)),
    **dict.fromkeys(MOVING, moved),
    **dict.fromkeys(OF_SHAPE, _of_shape),
    **dict.fromkeys(LOOKING_UP, lambda _, values: values[1]),
    "Bitcast": lambda _, values: values[0],
    "Einsum": lambda one, values: _contraction(one, values, one.get_attr("equation").decode()),
    "GatherV2": _gather,
    "Roll": lambda one, values: _combined(values, _axes(one, 2)),
    "MatrixBandPart": lambda one, values: _combined(values, _ALL[_rank(one) - 2 :]),
    "OneHot": lambda one, values: values[0].shifted(0 <= one.get_attr("axis") <= values[0].axis),
    "Shape": shapes_of,
    "ShapeN": shapes_of,
    "Size": size_of,
    "SparseTensorDenseMatMul": _dense,
    "SparseToDense": _dense,
    "TensorListFromTensor": _list,
    "TensorListGetItem": lambda _, values: values[0].shifted(-1),
    "TensorListLength": lambda *_: SAME,
    **dict.fromkeys(SETTING, lambda one, of: join(one.outputs[0], of[0], of[-1].shifted(1))),
    "TensorListStack": lambda _, values: values[0],
}
