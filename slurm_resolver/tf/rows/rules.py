"""Rules: what is known of the results of an operation, given what is known of its inputs.

`derive` is for operations of which at least one input is not SAME, and none is UNKNOWN. `RULES` has
the rule of each operation. A rule returns the value of all results, or a list with one for each, or
raises UnprovenError.

Operations that only move entries need no rules of their own: TensorFlow itself moves the
numbers of the rows. So do those that compute with sizes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Union

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.rows import operations
from slurm_resolver.tf.rows.values import (
    BATCHES,
    FOLLOWED,
    SAME,
    Batch,
    Kind,
    UnprovenError,
    Value,
    list_of,
    refuted,
    repeated,
    rows,
)

Values = Sequence[Value]
Found = Union[Value, list[Value]]
Rule = Callable[[Any, Values], Found]

_CONSTANT = "a constant with an entry for each row of the batch"
_SOME = "a part of the rows, or some rows together with others"
_MIXED = "a function of the number of rows, or of a sum over rows and of the rows"
_KNOWN = {Kind.SAME, Kind.NUMBERS}
_FEW = 100  # numbers of which the result is kept
_COMPUTED: dict[Any, list[Any]] = {}  # results by the operation and its inputs
_MOST = 2**24  # entries of a tensor whose rows are followed through TensorFlow's operations


def derive(operation: Any, values: Values) -> Found:
    """Returns what is known of an operation's results."""
    if operation.type not in operations.OF_SHAPE and {value.kind for value in values} <= _KNOWN:
        return _numbers(operation, values)
    rule = RULES.get(operation.type)
    components = any(value.kind is Kind.COMPONENT for value in values)
    if rule is None or (components and rule is not _sparse):
        raise UnprovenError("no rule")
    sums = [value for value in values if value.kind is Kind.SUM]
    divided = any(value.kind is Kind.ROWS and value.power for value in values)
    if divided and (operation.type not in operations.SCALED or _rounds(operation)):
        raise refuted("a function of the number of rows")
    return _of_sum(operation, values, sums) if sums else rule(operation, values)


def _rounds(operation: Any) -> bool:
    """Whether an operation makes integers of floating-point numbers."""
    return bool(
        operation.inputs[0].dtype.is_floating and not operation.outputs[0].dtype.is_floating
    )


def _of_sum(operation: Any, values: Values, sums: Values) -> Value:
    """Returns the value of a linear function of sums over rows.

    That is a factor times a sum, or sums of the same power that are added or moved.
    """
    if any(value.kind is Kind.ROWS for value in values):
        raise refuted(_MIXED)
    found = sums[0]
    others = [_power(value) for value in values if value.kind is not Kind.SUM]
    joins = operation.type in operations.JOINING
    linear = joins or (operation.type in operations.LINEAR and values[0].kind is Kind.SUM)
    if operation.type in operations.FACTORS and len(sums) == 1:
        divides = operation.type in operations.DIVIDING
        if not divides or values[0] is found:
            return found._replace(power=found.power + sum(others) * (-1 if divides else 1))
    elif linear and len(set(sums)) == 1 and not any(others):
        # The mean of a constant is that constant, but its sum is not.
        adds = joins and any(
            value.kind is not Kind.SUM and np.any(tf.get_static_value(tensor) != 0)
            for tensor, value in zip(operation.inputs, values)
        )
        if (found.is_mean or not adds) and not _rounds(operation):
            return found
    raise refuted("a sum or mean over the rows, and not a linear function of it alone")


def _power(value: Value) -> int:
    """Returns the power of the number of rows by which rows, or a constant, are multiplied."""
    power = value.power_of_numbers if value.kind is Kind.NUMBERS else value.power
    if power is None or value.kind not in (Kind.SAME, Kind.NUMBERS, Kind.ROWS):
        raise refuted(_MIXED)
    return power


# --- What TensorFlow itself computes -------------------------------------------------------------


def _attributes(operation: Any) -> dict[str, Any]:
    """Returns the attributes of an operation by their names."""
    return {one.name: operation.get_attr(one.name) for one in operation.op_def.attr}


def _applied(operation: Any, inputs: Iterable[Any]) -> list[Any]:
    """Applies an operation to other inputs, and returns its results."""
    function = getattr(tf.raw_ops, operation.type)
    attributes = _attributes(operation)
    accepted = inspect.signature(function).parameters
    arguments = {name: value for name, value in attributes.items() if name in accepted}
    names = [name for name in accepted if name not in (*attributes, "name")]
    waiting = iter(inputs)
    for name, count in zip(names, _counts(operation)):
        given = [next(waiting) for _ in range(count or 1)]
        arguments[name] = given[0] if count is None else given
    found = function(**arguments)
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _run(operation: Any, inputs: Iterable[Any]) -> list[Any]:
    """Runs an operation on other inputs, and returns its results as arrays."""
    try:
        with tf.init_scope(), tf.device("/cpu:0"):
            return [one.numpy() for one in _applied(operation, inputs)]
    except (tf.errors.OpError, ValueError, TypeError):
        unknown = any(one.shape.as_list().count(None) > 1 for one in operation.inputs)
        text = "sizes that fit only some batches"
        raise UnprovenError(text, refuted=not unknown) from None


def _counts(operation: Any) -> list[int | None]:
    """Returns for each input how many tensors it has; None if it is one tensor and no list."""
    return [
        operation.get_attr(argument.number_attr) if argument.number_attr else None
        for argument in operation.op_def.input_arg
    ]


def _array(tensor: Any, value: Value, batch: Batch) -> Any:
    """Returns what a tensor of numbers is in a batch."""
    if value.kind is Kind.NUMBERS:
        found = np.array(value.entries[BATCHES.index(batch)], tensor.dtype.as_numpy_dtype)
        return np.reshape(found, [-1] * tensor.shape.rank)
    found = tf.get_static_value(tensor)
    if found is None:
        raise UnprovenError("a size that is not known")
    return found


def _numbers(operation: Any, values: Values) -> Found:
    """Returns what is computed of sizes and constants alone; as numbers, if there are few."""
    outputs = operation.outputs
    few = all(one.shape.rank in (0, 1) and one.dtype.is_numpy_compatible for one in outputs)
    plain = all(value.is_plain for value in values)
    try:
        if not few or (operation.type == "Range" and not plain):
            raise UnprovenError("the numbers of the rows")
        results = _run_in_batches(operation, values)
    except UnprovenError:
        if plain:
            return SAME
        raise
    return [
        Value(Kind.NUMBERS, entries=tuple(tuple(np.ravel(one).tolist()) for one in numbers))
        for numbers in zip(*results)
    ]


def _run_in_batches(operation: Any, values: Values) -> list[Any]:
    """Returns the results of an operation on numbers for each of `BATCHES`.

    Layers repeat each other's sizes, and most sizes are the same in all batches, so each operation
    runs once on the same small numbers.
    """
    attributes = repr(_attributes(operation))
    results = []
    for batch in BATCHES:
        inputs = [_array(*pair, batch) for pair in zip(operation.inputs, values)]
        numbers = [(str(one.dtype), one.shape, one.tobytes()) for one in map(np.asarray, inputs)]
        key = (operation.type, attributes, *numbers)
        found = _COMPUTED.get(key)
        if found is None:
            found = _run(operation, inputs)
            if all(np.size(one) < _FEW for one in inputs):
                _COMPUTED[key] = found
        results.append(found)
    return results


def _sizes(tensor: Any, value: Value, batch: Batch) -> list[int]:
    """Returns the shape of a tensor in a batch."""
    sizes = [batch.others if size is None else size for size in tensor.shape.as_list()]
    if value.kind is Kind.ROWS:
        followed = next(one for one in FOLLOWED if one.others == batch.others)
        entries = len(value.layout[FOLLOWED.index(followed)]) // 4
        sizes[value.axis] = entries // followed.rows * batch.rows
    return sizes


def sizes_of(tensor: Any, value: Value) -> Value:
    """Returns the value of a tensor's shape."""
    return Value(
        Kind.NUMBERS, entries=tuple(tuple(_sizes(tensor, value, batch)) for batch in BATCHES)
    )


def _shapes(operation: Any, values: Values) -> list[Value]:
    """Rule for Shape and ShapeN."""
    return [sizes_of(tensor, value) for tensor, value in zip(operation.inputs, values)]


def _size(operation: Any, values: Values) -> Value:
    """Rule for Size: the number of all entries."""
    (found,) = _shapes(operation, values)
    return found._replace(entries=tuple((int(np.prod(sizes)),) for sizes in found.entries))


def _labels(tensor: Any, value: Value, batch: Batch) -> Any:
    """Returns an array of a tensor's shape with the number of each entry's row, from 1."""
    if value.kind is not Kind.ROWS:
        return np.zeros(_sizes(tensor, value, batch), np.int32)
    line = np.frombuffer(value.layout[FOLLOWED.index(batch)], np.int32)
    places = [1] * tensor.shape.rank
    places[value.axis] = -1
    sizes = _sizes(tensor, value, batch)
    if np.prod(sizes) > _MOST:
        raise UnprovenError("more entries than are followed")
    return np.broadcast_to(line.reshape(places), sizes)


def _read(arrays: Sequence[Any], power: int) -> Value:
    """Returns the value of a tensor, given its entries' rows for each of `FOLLOWED`.

    The rows are along an axis if the entries at each place of that axis belong to one row, and
    every row has as many places as the others. Entries without a row, 0, are constants.
    """
    if not any(np.any(array) for array in arrays):
        return SAME
    found = set()
    layout = []
    for batch, array in zip(FOLLOWED, arrays):
        for axis, size in enumerate(array.shape):
            places = np.moveaxis(array, axis, 0).reshape(size, -1)
            line = np.max(places, axis=1, keepdims=True)
            counts = np.bincount(line[:, 0], minlength=batch.rows + 1)
            same = np.logical_or(places == line, places == 0).all()
            if same and not counts[0] and len(set(counts[1:])) == 1:
                found.add(axis)
                layout.append(line.astype(np.int32).tobytes())
    constants = any(np.any(array == 0) for array in arrays)
    if len(found) != 1 or len(layout) != len(arrays) or (power and constants):
        raise refuted(_SOME)
    return rows(found.pop(), tuple(layout), power)


def _moved(operation: Any, values: Values) -> Found:
    """Rule for operations that only move entries, or put constants beside them.

    They move the numbers of the rows instead. Inputs of another type than the rows, such as axes
    and sizes, must be known.
    """
    powers = {value.power for value in values if value.kind is Kind.ROWS}
    types = [
        argument.type_attr
        for argument, count in zip(operation.op_def.input_arg, _counts(operation))
        for _ in range(count or 1)
    ]
    of_rows = {name for name, value in zip(types, values) if value.kind is Kind.ROWS}
    if len(powers) != 1 or len(of_rows) != 1:
        raise UnprovenError("no rule for these inputs")
    results = []
    for batch in FOLLOWED:
        inputs = [
            _labels(tensor, value, batch) if name in of_rows else _array(tensor, value, batch)
            for name, tensor, value in zip(types, operation.inputs, values)
        ]
        results.append(_run(operation, inputs))
    found = [_read(arrays, *powers) for arrays in zip(*results)]
    if operation.type in ("StridedSlice", "Slice") and found[0].kind is Kind.ROWS:
        _check_slice(operation, values, found[0])
    return found


def _check_slice(operation: Any, values: Values, found: Value) -> None:
    """Raises UnprovenError if a slice ends at a constant that is larger than the small batches."""
    batch = BATCHES[-1]
    with tf.Graph().as_default():
        data = tf.compat.v1.placeholder(tf.int32, _sizes(operation.inputs[0], values[0], batch))
        bounds = [
            tf.constant(_array(tensor, value, batch), tensor.dtype)
            for tensor, value in list(zip(operation.inputs, values))[1:]
        ]
        shape = _applied(operation, [data, *bounds])[0].shape
    if shape[found.axis] != _sizes(operation.outputs[0], found, batch)[found.axis]:
        raise refuted("a part of the rows")


# --- Entry by entry ------------------------------------------------------------------------------


def _aligned(operation: Any, values: Values, power: int = 0) -> Value:
    """Returns the result of rows and constants, each of whose entries is from those at its place.

    Places count from the last axis, as in broadcasting.
    """
    equation = ",".join("..." for _ in values) + "->..."
    return _contraction(operation, values, equation)._replace(power=power)


def _entries(operation: Any, values: Values) -> Value:
    """Rule for any function of the entries at one place."""
    if any(_power(value) for value in values):
        raise refuted("a function of the number of rows")
    return _aligned(operation, values)


def _sum(operation: Any, values: Values) -> Value:
    """Rule for sums, whose parts have the same power of the number of rows."""
    powers = {_power(value) for value in values}
    if len(powers) > 1:
        raise refuted("a sum with the number of rows")
    return _aligned(operation, values, powers.pop())


def _choice(operation: Any, values: Values) -> Value:
    """Rule for a choice between two tensors.

    If the condition is the same everywhere, the result is one of them; otherwise, it is a function
    of each entry.
    """
    chosen = values[0].is_plain and len({value.power for value in values[1:]}) == 1
    return _sum(operation, values) if chosen else _entries(operation, values)


def _product(operation: Any, values: Values) -> Value:
    """Rule for products and quotients.

    Powers of the number of rows are added or subtracted.
    """
    left, right = map(_power, values)
    divides = operation.type in operations.DIVIDING
    return _aligned(operation, values, left - right if divides else left + right)


# --- Axes ----------------------------------------------------------------------------------------


def _axes(operation: Any, place: int, rank: int) -> list[int]:
    """Returns the axes that an input names, each at least 0."""
    return [
        int(axis) % rank for axis in np.ravel(_array(operation.inputs[place], SAME, BATCHES[0]))
    ]


def _combining(axes: Callable[[Any, int], Iterable[int]], *, place: int = 0) -> Rule:
    """Makes a rule for what combines entries along axes, of which none may be that of the rows.

    Args:
        axes: returns the axes, given the operation and the rank of its input.
        place: of the input with these axes; others are constants, or have the same rows.
    """

    def rule(operation: Any, values: Values) -> Value:
        value = values[place]
        found = {other for other in values if other.kind is Kind.ROWS}
        if found != {value}:
            raise refuted("rows with other rows")
        if value.axis in axes(operation, operation.inputs[place].shape.rank):
            raise refuted("all rows together")
        return value

    return rule


def _last(count: int) -> Callable[[Any, int], Iterable[int]]:
    return lambda operation, rank: range(rank - count, rank)


def _all_but_first(operation: Any, rank: int) -> Iterable[int]:
    return range(1, rank)


def _given(operation: Any, rank: int) -> Iterable[int]:
    return _axes(operation, 1, rank)


def _reduction(operation: Any, values: Values) -> Value:
    """Rule for what reduces axes: along that of the rows, only a sum or a mean is known."""
    value = values[0]
    axes = set(_axes(operation, 1, operation.inputs[0].shape.rank))
    if value.axis in axes and operation.type in ("Sum", "Mean"):
        return Value(Kind.SUM, value.power - (operation.type == "Mean"))
    if value.axis in axes:
        raise refuted(_SOME)
    if "Arg" not in operation.type and operation.get_attr("keep_dims"):
        return value
    return value._replace(axis=value.axis - sum(axis < value.axis for axis in axes))


def _one_hot(operation: Any, values: Values) -> Value:
    """Rule for OneHot, which adds an axis."""
    if not all(value.is_plain for value in values[1:]):
        raise refuted("as many entries as rows")
    added = 0 <= operation.get_attr("axis") <= values[0].axis
    return values[0]._replace(axis=values[0].axis + added)


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
    left, _, result = equation.partition("->")
    ranks = [tensor.shape.rank for tensor in (*operation.inputs, operation.outputs[0])]
    if None in ranks:
        raise UnprovenError("an unknown rank")
    others = "0123456789abcdef"[: ranks[-1] - len(result) + 3]
    labels = [
        one.replace("...", others[len(others) - (rank - len(one) + 3) :])
        for one, rank in zip(left.split(","), ranks)
    ]
    result = result.replace("...", others)
    given = list(zip(labels, values, operation.inputs))
    found = {(of[value.axis], value.layout) for of, value, _ in given if value.kind is Kind.ROWS}
    if len(found) != 1:
        raise refuted("rows with other rows")
    label, layout = found.pop()
    for of, value, tensor in given:
        if value.kind is not Kind.ROWS and label in of and tensor.shape[of.index(label)] != 1:
            raise refuted(_CONSTANT)
    power = sum(map(_power, values))
    if label not in result:
        return Value(Kind.SUM, power)
    return rows(result.index(label), layout, power)


def _matrix_product(operation: Any, values: Values) -> Value:
    """Rule for MatMul and BatchMatMul, whose first axes are those of a batch of matrices."""
    names = ("transpose_a", "transpose_b") if operation.type == "MatMul" else ("adj_x", "adj_y")
    left, right = map(operation.get_attr, names)
    equation = f"...{'YX' if left else 'XY'},...{'ZY' if right else 'YZ'}->...XZ"
    return _contraction(operation, values, equation)


def _einsum(operation: Any, values: Values) -> Value:
    """Rule for Einsum, whose equation names the axes."""
    return _contraction(operation, values, operation.get_attr("equation").decode())


# --- What has a given shape ----------------------------------------------------------------------


def _keeps_shape(operation: Any) -> bool:
    """Whether the first input has the shape of the result, and both are known."""
    shape = operation.inputs[0].shape
    return shape.is_fully_defined() and shape == operation.outputs[0].shape


def _of_shape(operation: Any, values: Values) -> Value:
    """Rule for what has a shape with rows, and is random or the same everywhere.

    The shape is the first input; of BroadcastTo and Tile, it is the second.
    """
    place = int(operation.type in operations.MOVING)
    if values[0].kind is Kind.ROWS:
        return _moved(operation, values)  # type: ignore[return-value]
    if operation.type == "BroadcastTo" and _keeps_shape(operation):
        return values[0]
    if not all(value.is_plain for value in (*values[:place], *values[place + 1 :])):
        raise refuted("other entries for each row")
    if values[place].kind is not Kind.NUMBERS or values[place].is_plain:
        if operation.type in ("Fill", *operations.MOVING):
            return SAME
        raise UnprovenError("random numbers that do not depend on the number of rows")
    sizes = np.array([_array(operation.inputs[place], values[place], batch) for batch in BATCHES])
    of_rows = sizes / [[batch.rows] for batch in BATCHES]
    counted = np.flatnonzero(sizes[0] != sizes[1])
    if len(counted) != 1 or np.ptp(of_rows[:, counted]):
        raise refuted("another number of entries than of rows")
    axis = int(counted[0])
    count = int(of_rows[0][axis])
    if place:
        rank = sizes.shape[1]
        size = ([1] * rank + operation.inputs[0].shape.as_list())[axis - rank]
        if operation.type == "BroadcastTo" and size != 1:
            raise refuted(_CONSTANT)
        count *= size
    return rows(axis, repeated(count))


def _gather(operation: Any, values: Values) -> Found:
    """Rule for GatherV2: of a table, of other axes than that of the rows, or in each row."""
    data, indices = values[:2]
    (axis,) = _axes(operation, 2, operation.inputs[0].shape.rank)
    batch = operation.get_attr("batch_dims")
    if data == indices and data.axis < batch:
        return data
    if not batch and data.is_plain and not indices.power:
        return indices._replace(axis=indices.axis + axis)
    if batch or not indices.is_plain or data.axis == axis:
        raise refuted("rows that are picked by their numbers")
    added = operation.inputs[1].shape.rank - 1 if axis < data.axis else 0
    return data._replace(axis=data.axis + added)


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
    return list_of(values[0]._replace(axis=values[0].axis - 1))


def _stack(operation: Any, values: Values) -> Value:
    """Rule for TensorListStack, which adds a first axis."""
    value = _element(operation, values)
    return value._replace(axis=value.axis + 1) if value.kind is Kind.ROWS else value


def join(one: Value, other: Value) -> Value:
    """Returns what is known of a tensor that is one of two, such as a variable of a loop."""
    if one == other:
        return one
    if Kind.UNKNOWN in (one.kind, other.kind):
        return one if one.kind is Kind.UNKNOWN else other
    if one.kind is Kind.LIST and other.kind is Kind.LIST:
        return list_of(join(one.entries[0], other.entries[0]))
    if one.is_plain and other.is_plain:
        return SAME
    for plain, wanted in ((one, other), (other, one)):
        if plain.is_plain and (wanted.is_mean or wanted.is_by_row or wanted.kind is Kind.LIST):
            return wanted
    raise refuted("rows on one path, and something else on another")


# --- The table -----------------------------------------------------------------------------------

RULES: dict[str, Rule] = {
    **dict.fromkeys(operations.KEEPING, lambda _, values: values[0]),
    **dict.fromkeys(operations.ENTRIES, _entries),
    **dict.fromkeys(operations.ADDING, _sum),
    **dict.fromkeys({"Mul", *operations.DIVIDING}, _product),
    **dict.fromkeys(operations.REDUCING, _reduction),
    **dict.fromkeys(operations.MATRIX_PRODUCTS, _matrix_product),
    **dict.fromkeys(operations.WINDOWS, _combining(_all_but_first)),
    **dict.fromkeys(operations.TRANSPOSED_WINDOWS, _combining(_all_but_first, place=2)),
    **dict.fromkeys(["BiasAdd", "Softmax", "LogSoftmax", "TopKV2"], _combining(_last(1))),
    **dict.fromkeys(["FFT", "IFFT", "RFFT", "IRFFT"], _combining(_last(1))),
    **dict.fromkeys(["Cholesky", "MatrixInverse", "FFT2D", "IFFT2D"], _combining(_last(2))),
    **dict.fromkeys(["Cumsum", "Cumprod", "CumulativeLogsumexp"], _combining(_given)),
    **dict.fromkeys(operations.MOVING, _moved),
    **dict.fromkeys(operations.OF_SHAPE, _of_shape),
    **dict.fromkeys(["Select", "SelectV2"], _choice),
    **dict.fromkeys(["Shape", "ShapeN"], _shapes),
    **dict.fromkeys(["Rank", "TensorListLength"], lambda *_: SAME),
    **dict.fromkeys(["ResourceGather", "LookupTableFindV2"], lambda _, values: values[1]),
    **dict.fromkeys(["SparseTensorDenseMatMul", "SparseToDense"], _sparse),
    **dict.fromkeys(["TensorListSetItem", "TensorListPushBack"], _set_element),
    "IdentityN": lambda _, values: list(values),
    "Einsum": _einsum,
    "Bitcast": _combining(lambda *_: ()),
    "ScatterNd": _scattered,
    "UnsortedSegmentSum": _scattered,
    "ReverseSequence": _combining(lambda operation, _: [operation.get_attr("seq_dim")]),
    "OneHot": _one_hot,
    "Size": _size,
    "GatherV2": _gather,
    "TensorListFromTensor": _list,
    "TensorListGetItem": _element,
    "TensorListStack": _stack,
}
