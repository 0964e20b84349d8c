"""What TensorFlow itself computes of sizes, and of the numbers of rows.

Operations that only move entries need no rules of their own: TensorFlow moves the number of each
entry's row instead. `tf.transpose`, for a batch of 3 rows along axis 0, shows that its result has
them along axis 1::

    1 1 1 1        1 2 3
    2 2 2 2   ->   1 2 3
    3 3 3 3        1 2 3
                   1 2 3

A constant that is put beside rows has the number 0. Operations that compute with sizes do so for
each of `BATCHES`.
"""

from __future__ import annotations

import inspect
import itertools
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.rows.values import (
    BATCHES,
    FOLLOWED,
    SAME,
    Batch,
    Found,
    Kind,
    RefutedError,
    UnprovenError,
    Value,
    Values,
    numbers,
    rows,
)

SOME = "a part of the rows, or some rows together with others"

_FEW = 100  # numbers of which the result is kept
_COMPUTED: dict[Any, list[Any]] = {}  # results by the operation and its inputs
_MOST = 2**24  # entries of a tensor whose rows are followed through TensorFlow's operations


def _attributes(operation: Any) -> dict[str, Any]:
    """Returns the attributes of an operation by their names in `tf.raw_ops`."""
    names = {"squeeze_dims": "axis"}  # that differ there
    return {
        names.get(one.name, one.name): operation.get_attr(one.name) for one in operation.op_def.attr
    }


def _applied(operation: Any, inputs: Iterable[Any]) -> list[Any]:
    """Applies an operation to other inputs, and returns its results."""
    function = getattr(tf.raw_ops, operation.type)
    attributes = _attributes(operation)
    accepted = inspect.signature(function).parameters
    arguments = {name: value for name, value in attributes.items() if name in accepted}
    names = [name for name in accepted if name not in (*attributes, "name")]
    waiting = iter(inputs)
    for name, count in zip(names, _counts(operation)):
        several = itertools.islice(waiting, count)
        arguments[name] = next(waiting) if count is None else list(several)
    return tf.nest.flatten(function(**arguments))  # type: ignore[no-any-return]


def _run(operation: Any, inputs: Iterable[Any]) -> list[Any]:
    """Runs an operation on other inputs, and returns its results as arrays."""
    try:
        with tf.init_scope(), tf.device("/cpu:0"):
            return [one.numpy() for one in _applied(operation, inputs)]
    except (tf.errors.OpError, ValueError, TypeError):
        unknown = any(one.shape.as_list().count(None) > 1 for one in operation.inputs)
        kind = UnprovenError if unknown else RefutedError
        raise kind("sizes that fit only some batches") from None


def _counts(operation: Any) -> list[int | None]:
    """Returns for each input how many tensors it has; None if it is one tensor and no list."""
    return [
        operation.get_attr(argument.number_attr) if argument.number_attr else None
        for argument in operation.op_def.input_arg
    ]


def array_of(tensor: Any, value: Value, batch: Batch) -> Any:
    """Returns what a tensor of numbers is in a batch."""
    if value.kind is Kind.NUMBERS:
        found = np.array(value.entries[BATCHES.index(batch)], tensor.dtype.as_numpy_dtype)
        return np.reshape(found, [-1] * tensor.shape.rank)
    found = tf.get_static_value(tensor)
    if found is None:
        raise UnprovenError("a size that is not known")
    return found


def numbers_of(operation: Any, values: Values) -> Found:
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
    return [numbers(of_batches) for of_batches in zip(*results)]


def _run_in_batches(operation: Any, values: Values) -> list[Any]:
    """Returns the results of an operation on numbers for each of `BATCHES`.

    Layers repeat each other's sizes, and most sizes are the same in all batches, so each operation
    runs once on the same small numbers.
    """
    attributes = repr(_attributes(operation))
    results = []
    for batch in BATCHES:
        inputs = [array_of(tensor, value, batch) for tensor, value in zip(operation.inputs, values)]
        key = (operation.type, attributes, pickle.dumps(inputs))
        found = _COMPUTED.get(key) or _run(operation, inputs)
        if all(np.size(one) < _FEW for one in inputs):
            _COMPUTED[key] = found
        results.append(found)
    return results


def _sizes(tensor: Any, value: Value, batch: Batch) -> list[int]:
    """Returns the shape of a tensor in a batch."""
    sizes = [batch.others if size is None else size for size in tensor.shape.as_list()]
    if value.kind is Kind.ROWS:
        for followed, layout in zip(FOLLOWED, value.layout):
            if followed.others == batch.others:
                sizes[value.axis] = len(layout) // 4 // followed.rows * batch.rows
    return sizes


def sizes_of(tensor: Any, value: Value) -> Value:
    """Returns the value of a tensor's shape."""
    return numbers(_sizes(tensor, value, batch) for batch in BATCHES)


def shapes_of(operation: Any, values: Values) -> list[Value]:
    """Rule for Shape and ShapeN."""
    return [sizes_of(tensor, value) for tensor, value in zip(operation.inputs, values)]


def size_of(operation: Any, values: Values) -> Value:
    """Rule for Size: the number of all entries."""
    (found,) = shapes_of(operation, values)
    return numbers(map(np.prod, found.entries))


def _labels(tensor: Any, value: Value, batch: Batch) -> Any:
    """Returns an array of a tensor's shape with the number of each entry's row, from 1."""
    sizes = _sizes(tensor, value, batch)
    if value.kind is not Kind.ROWS:
        return np.zeros(sizes, np.int32)
    if np.prod(sizes) > _MOST:
        raise UnprovenError("more entries than are followed")
    line = np.frombuffer(value.layout[FOLLOWED.index(batch)], np.int32)
    later = len(sizes) - value.axis - 1  # the axes after that of the rows
    return np.broadcast_to(line.reshape([-1] + [1] * later), sizes)


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
        axes = range(array.ndim)
        for axis in axes:
            others = tuple(other for other in axes if other != axis)
            line = np.max(array, axis=others, keepdims=True)
            counts = np.bincount(line.ravel(), minlength=batch.rows + 1)
            same = np.all((array == line) | (array == 0))
            if same and not counts[0] and len(set(counts[1:])) == 1:
                found.add(axis)
                layout.append(line.astype(np.int32).tobytes())
    constants = not all(np.all(array) for array in arrays)
    if len(found) != 1 or len(layout) != len(arrays) or (power and constants):
        raise RefutedError(SOME)
    return rows(found.pop(), tuple(layout), power)


def moved(operation: Any, values: Values) -> Found:
    """Rule for operations that only move entries, or put constants beside them.

    They move the numbers of the rows instead. Inputs of another type than the rows, such as axes
    and sizes, must be known.
    """
    powers = {value.power for value in values if value.kind is Kind.ROWS}
    # TensorFlow's name for the type of each input: "T" is usually that of the data.
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
            _labels(tensor, value, batch) if name in of_rows else array_of(tensor, value, batch)
            for name, tensor, value in zip(types, operation.inputs, values)
        ]
        results.append(_run(operation, inputs))
    power = powers.pop()
    found = [_read(arrays, power) for arrays in zip(*results)]
    if operation.type in ("StridedSlice", "Slice") and found[0].kind is Kind.ROWS:
        _check_slice(operation, values, found[0])
    return found


def _check_slice(operation: Any, values: Values, found: Value) -> None:
    """Raises UnprovenError if a slice ends at a constant that is larger than the small batches."""
    batch = BATCHES[-1]
    given = zip(operation.inputs[1:], values[1:])
    # Only the shapes are computed: the batch is large.
    with tf.Graph().as_default():
        data = tf.compat.v1.placeholder(tf.int32, _sizes(operation.inputs[0], values[0], batch))
        bounds = [array_of(tensor, value, batch) for tensor, value in given]
        shape = _applied(operation, [data, *bounds])[0].shape
    if shape[found.axis] != _sizes(operation.outputs[0], found, batch)[found.axis]:
        raise RefutedError("a part of the rows")
