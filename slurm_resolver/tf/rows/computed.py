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

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from slurm_resolver.tf import private_names
from slurm_resolver.tf.rows.operations import FOLDED
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
)

_DATA = {"T": tf.int32, "Tparams": tf.int32}  # TensorFlow's names for the type of the data
_MOST = 2**24  # entries of a tensor whose rows are followed through TensorFlow's operations


def _run(operation: Any, inputs: Sequence[Any], **types: Any) -> list[Any]:
    """Runs an operation on other inputs, and returns its results as arrays.

    Args:
        types: the operation's attributes that differ.
    """
    attributes: list[Any] = []
    for attribute in operation.op_def.attr:
        name = attribute.name
        attributes += [name, types.get(name) or operation.get_attr(name)]
    try:
        with tf.init_scope(), tf.device("/cpu:0"):
            results = private_names.EXECUTE.get()(
                operation.type.encode(),
                len(operation.outputs),
                [tf.constant(one) for one in inputs],
                tuple(attributes),
                private_names.CONTEXT.get()(),
            )
            return [one.numpy() for one in results]
    except (tf.errors.OpError, ValueError, TypeError):
        is_unknown = any(one.shape.as_list().count(None) > 1 for one in operation.inputs)
        kind = UnprovenError if is_unknown else RefutedError
        raise kind("sizes that fit only some batches") from None


def array_of(tensor: Any, value: Value, batch: Batch) -> Any:
    """Returns what a tensor of numbers is in a batch."""
    if value.kind is Kind.NUMBERS:
        return np.array(value.numbers[BATCHES.index(batch)], tensor.dtype.as_numpy_dtype)
    found = tf.get_static_value(tensor)
    if found is None and tensor.op.type in FOLDED:
        inputs = [array_of(one, SAME, batch) for one in tensor.op.inputs]
        found = _run(tensor.op, inputs)[tensor.value_index]
    if found is None:
        raise UnprovenError("a size that is not known")
    return found


def numbers_of(operation: Any, values: Values) -> Found:
    """Returns what is computed of sizes and constants alone; as numbers, if there are few."""
    try:
        if any(output.shape.rank not in (0, 1) for output in operation.outputs):
            raise UnprovenError("a tensor of the number of rows")
        results = []
        for batch in BATCHES:
            inputs = [array_of(*given, batch) for given in zip(operation.inputs, values)]
            results.append(_run(operation, inputs))
        if results[0][0].shape != results[-1][0].shape:
            raise UnprovenError("the numbers of the rows")
        return [numbers(of_batches) for of_batches in zip(*results)]
    except UnprovenError:
        if all(value.is_plain for value in values):
            return SAME
        raise


def _sizes(tensor: Any, value: Value, batch: Batch) -> list[int]:
    """Returns the shape of a tensor in a batch."""
    sizes = [batch.others if size is None else size for size in tensor.shape.as_list()]
    for followed, line in zip(FOLLOWED, value.layout):
        if followed.others == batch.others:
            sizes[value.axis] = len(line) // followed.rows * batch.rows
    return sizes


def shapes_of(operation: Any, values: Values) -> list[Value]:
    """Rule for Shape and ShapeN."""
    return [
        numbers(_sizes(*given, batch) for batch in BATCHES)
        for given in zip(operation.inputs, values)
    ]


def size_of(operation: Any, values: Values) -> Value:
    """Rule for Size: the number of all entries."""
    return numbers(map(np.prod, shapes_of(operation, values)[0].numbers))


def _labels(tensor: Any, value: Value, place: int) -> Any:
    """Returns an array of a tensor's shape in one of `FOLLOWED`, with each entry's row."""
    sizes = _sizes(tensor, value, FOLLOWED[place])
    if value.kind is not Kind.ROWS:
        return np.zeros(sizes, np.int32)
    if np.prod(sizes) > _MOST:
        raise UnprovenError("more entries than are followed")
    line = np.array(value.layout[place], np.int32)
    later = len(sizes) - value.axis - 1  # the axes after that of the rows
    return np.broadcast_to(line.reshape([-1] + [1] * later), sizes)


def _line(array: Any, axis: int, batch: Batch) -> tuple[int, ...]:
    """Returns the rows along an axis, given the row of each entry; () if they are not along it.

    They are, if the entries at each place of the axis belong to one row, and every row has as many
    places as the others. Entries without a row, 0, are constants, which all places have alike.
    """
    places = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    line = np.max(places, axis=1)
    constant = places == 0
    is_along = np.all(constant | (places == line[:, np.newaxis]))
    counts = set(np.bincount(line, minlength=batch.rows + 1)[1:])
    if is_along and np.all(constant == constant[0]) and len(counts) == 1 and line.all():
        return tuple(line.tolist())
    return ()


def _read(arrays: Sequence[Any]) -> Value:
    """Returns the value of a tensor, given its entries' rows for each of `FOLLOWED`."""
    if not any(map(np.any, arrays)):
        return SAME
    for axis in range(arrays[0].ndim):
        layout = tuple(_line(array, axis, batch) for array, batch in zip(arrays, FOLLOWED))
        if all(layout):
            return Value(Kind.ROWS, axis=axis, layout=layout)
    raise RefutedError("a part of the rows, or some rows together with others")


def moved(operation: Any, values: Values) -> Found:
    """Rule for operations that only move entries, or put constants beside them.

    They move the numbers of the rows instead. Other inputs than data, such as axes and sizes, must
    be known.
    """
    results = [_moved_in(operation, values, place) for place in range(len(FOLLOWED))]
    found = [_read(arrays) for arrays in zip(*results)]
    if operation.type == "StridedSlice" and found[0].layout:
        # A slice that ends at a large constant has all rows of a small batch, but not if the
        # constant is small, too.
        axis = found[0].axis
        (part,) = _moved_in(operation, values, 0, most=2)
        if part.shape[axis] != results[0][0].shape[axis]:
            raise RefutedError("a part of the rows")
    return found


def _moved_in(operation: Any, values: Values, place: int, most: int = 0) -> list[Any]:
    """Returns the row of each entry of an operation's results, in one of `FOLLOWED`.

    Args:
        most: the largest size that does not depend on the batch; 0 for any.
    """
    is_data: list[bool] = []
    for argument in operation.op_def.input_arg:
        count = operation.node_def.attr[argument.number_attr].i if argument.number_attr else 1
        is_data += [argument.type_attr in _DATA] * count
    inputs = []
    for has_rows, tensor, value in zip(is_data, operation.inputs, values):
        if has_rows:
            inputs.append(_labels(tensor, value, place))
        else:
            array = array_of(tensor, value, FOLLOWED[place])
            if most and value.degree != 1:
                array = np.clip(array, -most, most)
            inputs.append(array)
    return _run(operation, inputs, **_DATA)
