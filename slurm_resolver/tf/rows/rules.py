"""Rules: what is known of the results of an operation, given what is known of its inputs.

`derive` is for operations of which at least one input is not SAME, and none is UNKNOWN. `RULES` has
the rule of each operation. A rule returns the value of all results, or a list with one for each, or
raises UnprovenError.
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
    SCALED,
    TRANSPOSED_WINDOWS,
    WINDOWS,
)
from slurm_resolver.tf.rows.values import (
    BATCHES,
    SAME,
    Found,
    Kind,
    RefutedError,
    UnprovenError,
    Value,
    Values,
    list_of,
    repeated,
    rows,
)

Rule = Callable[[Any, Values], Found]

_CONSTANT = "a constant with an entry for each row of the batch"
_MIXED = "a function of the number of rows, or of a sum over rows and of the rows"
_KNOWN = {Kind.SAME, Kind.NUMBERS}
_PLACES = "fedcba9876543210"  # names of axes, which end at the last one


def derive(operation: Any, values: Values) -> Found:
    """Returns what is known of an operation's results."""
    kinds = {value.kind for value in values}
    if kinds <= _KNOWN and operation.type not in OF_SHAPE:
        return numbers_of(operation, values)
    rule = RULES.get(operation.type)
    if rule is None or (Kind.COMPONENT in kinds and rule is not _sparse):
        raise UnprovenError("no rule")
    divided = any(value.power for value in values if value.kind is Kind.ROWS)
    if divided and (operation.type not in SCALED or _rounds(operation)):
        raise RefutedError("a function of the number of rows")
    return _of_sum(operation, values) if Kind.SUM in kinds else rule(operation, values)


def _rounds(operation: Any) -> bool:
    """Whether an operation makes integers of floating-point numbers."""
    return bool(
        operation.inputs[0].dtype.is_floating and not operation.outputs[0].dtype.is_floating
    )


def _of_sum(operation: Any, values: Values) -> Value:
    """Returns the value of a linear function of sums over rows.

    That is a factor times a sum, or sums of the same power that are added or moved.
    """
    if any(value.kind is Kind.ROWS for value in values):
        raise RefutedError(_MIXED)
    sums = [value for value in values if value.kind is Kind.SUM]
    found = sums[0]
    others = [
        (tensor, _power(value))
        for tensor, value in zip(operation.inputs, values)
        if value.kind is not Kind.SUM
    ]
    begins = values[0].kind is Kind.SUM  # whether the first input is a sum
    joins = operation.type in JOINING
    if operation.type in FACTORS:
        if len(sums) == 1 and (begins or operation.type not in DIVIDING):
            return Value(Kind.SUM, _power_of_product(operation, values))
    elif operation.type in LINEAR and (begins or joins) and len(set(sums)) == 1:
        # The mean of a constant is that constant, but its sum is not.
        adds = joins and any(np.any(tf.get_static_value(tensor) != 0) for tensor, _ in others)
        multiplied = any(power for _, power in others)
        if not multiplied and (found.is_mean or not adds) and not _rounds(operation):
            return found
    raise RefutedError("a function of a sum or mean over the rows, and not linear in it alone")


def _power(value: Value) -> int:
    """Returns the power of the number of rows by which a tensor is multiplied."""
    power = value.degree
    if power is None or value.kind in (Kind.COMPONENT, Kind.LIST, Kind.UNKNOWN):
        raise RefutedError(_MIXED)
    return power


def _power_of_product(operation: Any, values: Values) -> int:
    """Returns the power of a product or quotient: powers are added or subtracted."""
    powers = [_power(value) for value in values]
    return powers[0] - powers[1] if operation.type in DIVIDING else sum(powers)


# --- Entry by entry ------------------------------------------------------------------------------


def _aligned(operation: Any, values: Values, power: int) -> Value:
    """Returns the result of rows and constants, each of whose entries is from those at its place.

    Places count from the last axis, as in broadcasting.
    """
    equation = ",".join(["..."] * len(values)) + "->..."
    return _contraction(operation, values, equation)._replace(power=power)


def _entries(operation: Any, values: Values) -> Value:
    """Rule for sums, and for any function of the entries at one place.

    All have the same power of the number of rows; for other functions than sums, `derive` has
    refused rows with a power.
    """
    powers = {_power(value) for value in values}
    if len(powers) > 1:
        kind = "sum with" if operation.type in ADDING else "function of"
        raise RefutedError(f"a {kind} the number of rows")
    return _aligned(operation, values, powers.pop())


def _product(operation: Any, values: Values) -> Value:
    """Rule for products and quotients."""
    return _aligned(operation, values, _power_of_product(operation, values))


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
        return Value(Kind.SUM, value.power - (operation.type == "Mean"))
    if "Arg" not in operation.type and operation.get_attr("keep_dims"):
        return value
    return value.shifted(-sum(axis < value.axis for axis in axes))


def _one_hot(operation: Any, values: Values) -> Value:
    """Rule for OneHot, which adds an axis."""
    if not all(value.is_plain for value in values[1:]):
        raise RefutedError("as many entries as rows")
    return values[0].shifted(0 <= operation.get_attr("axis") <= values[0].axis)


def _scattered(operation: Any, values: Values) -> Value:
    """Rule for sums of rows at indices, which may be of each row."""
    data, indices, size = values
    if operation.type == "ScatterNd":
        data, indices = indices, data
    if data._replace(power=0) != indices or not size.is_plain:
        raise UnprovenError("no rule for these indices")
    return Value(Kind.SUM, data.power)


def _contraction(operation: Any, values: Values, equation: str) -> Value:
    """Returns the value of a product that is summed over the axes which the result lacks.

    Args:
        equation: names the axes, as in `tf.einsum`; "..." counts from the last one.
    """
    labels = []
    shapes = [tensor.shape for tensor in (*operation.inputs, *operation.outputs)]
    for term, shape in zip(re.split(",|->", equation), shapes):
        if shape.rank is None:
            raise UnprovenError("an unknown rank")
        hidden = shape.rank - len(term) + len("...")
        labels.append(term.replace("...", _PLACES[len(_PLACES) - hidden :]))
    given = list(zip(labels, values, shapes))
    found = {(of[value.axis], value.layout) for of, value, _ in given if value.kind is Kind.ROWS}
    if len(found) != 1:
        raise RefutedError("rows with other rows")
    label, layout = found.pop()
    for of, value, shape in given:
        if value.kind is not Kind.ROWS and label in of and shape[of.index(label)] != 1:
            raise RefutedError(_CONSTANT)
    power = sum(map(_power, values))
    axis = labels[-1].find(label)
    return Value(Kind.SUM, power) if axis < 0 else rows(axis, layout, power)


def _matrix_product(operation: Any, values: Values) -> Value:
    """Rule for MatMul and BatchMatMul, whose first axes are those of a batch of matrices."""
    names = ("transpose_a", "transpose_b") if operation.type == "MatMul" else ("adj_x", "adj_y")
    left, right = map(operation.get_attr, names)
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
    is_plain = all(value.is_plain for value in others)
    if shape.is_plain and (of_constant or operation.type == "Fill"):
        return SAME if is_plain else numbers_of(operation, values)
    if not is_plain or shape.kind not in _KNOWN:
        raise RefutedError("other entries for each row")
    if shape.is_plain:
        raise UnprovenError("random numbers that do not depend on the number of rows")
    sizes = np.array(shape.entries)
    of_rows = sizes / [[batch.rows] for batch in BATCHES]
    counted = np.flatnonzero(sizes[0] != sizes[1])
    if len(counted) != 1 or np.ptp(of_rows[:, counted]):
        raise RefutedError("a different number of entries than rows")
    axis = int(counted[0])
    count = int(of_rows[0][axis])
    if of_constant:
        rank = sizes.shape[1]
        size = ([1] * rank + operation.inputs[0].shape.as_list())[axis - rank]
        if operation.type == "BroadcastTo" and size != 1:
            raise RefutedError(_CONSTANT)
        count *= size
    return rows(axis, repeated(count))


def _gather(operation: Any, values: Values) -> Found:
    """Rule for GatherV2: of a table, of other axes than that of the rows, or in each row."""
    data, indices = values[:2]
    (axis,) = _axes(operation, 2)
    batch = operation.get_attr("batch_dims")
    if data == indices and data.axis < batch:
        return data
    if not batch and data.is_plain and not indices.power:
        return indices.shifted(axis)
    if batch or not indices.is_plain or data.axis == axis:
        raise RefutedError("rows that are picked by their numbers")
    return data.shifted(operation.inputs[1].shape.rank - 1 if axis < data.axis else 0)


def _sparse(operation: Any, values: Values) -> Value:
    """Rule for what makes dense rows of a sparse tensor."""
    kinds = {value.kind for value in values[:3]}
    if kinds != {Kind.COMPONENT, Kind.NUMBERS} or not values[-1].is_plain:
        raise UnprovenError("no rule")
    return rows()


# --- TensorLists ---------------------------------------------------------------------------------


def _element(operation: Any, values: Values) -> Value:
    """Rule for TensorListGetItem."""
    return values[0].entries[0] if values[0].entries else SAME


def _set_element(operation: Any, values: Values) -> Value:
    """Rule for TensorListSetItem and TensorListPushBack."""
    return join(values[0], list_of(values[-1]))


def _list(operation: Any, values: Values) -> Value:
    """Rule for TensorListFromTensor, which splits the first axis."""
    if not values[0].axis:
        raise UnprovenError("a loop over the rows")
    return list_of(values[0].shifted(-1))


def _stack(operation: Any, values: Values) -> Value:
    """Rule for TensorListStack, which adds a first axis."""
    value = _element(operation, values)
    return value.shifted(1) if value.kind is Kind.ROWS else value


def join(one: Value, other: Value) -> Value:
    """Returns what is known of a tensor that is one of two, such as a variable of a loop."""
    if one == other:
        return one
    if one.kind is Kind.LIST and other.kind is Kind.LIST:
        return list_of(join(one.entries[0], other.entries[0]))
    if one.is_plain and other.is_plain:
        return SAME
    for value, wanted in ((other, one), (one, other)):
        joined = wanted.is_mean or wanted.is_by_row or wanted.kind is Kind.LIST
        if wanted.kind is Kind.UNKNOWN or (value.is_plain and joined):
            return wanted
    raise RefutedError("rows on one path, and something else on another")


# --- The table -----------------------------------------------------------------------------------

RULES: dict[str, Rule] = {
    **dict.fromkeys(KEEPING, lambda _, values: values[0]),
    **dict.fromkeys(ENTRIES | ADDING, _entries),
    **dict.fromkeys(DIVIDING, _product),
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
    "IdentityN": lambda _, values: list(values),
    "Mul": _product,
    "OneHot": _one_hot,
    "Rank": lambda *_: SAME,
    "ReverseSequence": lambda one, values: _combined(values, [one.get_attr("seq_dim")]),
    "ScatterNd": _scattered,
    "Shape": shapes_of,
    "ShapeN": shapes_of,
    "Size": size_of,
    "SparseTensorDenseMatMul": _sparse,
    "SparseToDense": _sparse,
    "TensorListFromTensor": _list,
    "TensorListGetItem": _element,
    "TensorListLength": lambda *_: SAME,
    "TensorListPushBack": _set_element,
    "TensorListSetItem": _set_element,
    "TensorListStack": _stack,
    "UnsortedSegmentSum": _scattered,
}
