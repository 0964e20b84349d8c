"""What TensorFlow itself computes of sizes, and of the numbers of rows.

Operations that only move entries need no rules of their own: TensorFlow moves labels instead, which
say of which row an entry is. `tf.transpose`, for a batch of 3 rows along axis 0, shows that its
result has them along axis 1::

    1 1 1 1        1 2 3
    2 2 2 2   ->   1 2 3
    3 3 3 3        1 2 3
                   1 2 3

A label is the row, plus `_BLOCK` times the number of entries of this row up to this one: of two
blocks of rows, one has the labels 5, 6, 7, the other one 9, 10, 11. A constant that is put beside
rows has the label 0. Operations that compute with sizes do so for each of `BATCHES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from slurm_resolver.tf import private_names
from slurm_resolver.tf.rows.operations import COMPARING, FOLDED, MOVING
from slurm_resolver.tf.rows.values import (
    BATCHES,
    FEW,
    MANY,
    OTHER_SIZE,
    SAME,
    Found,
    Kind,
    RefutedError,
    UnprovenError,
    Value,
    Values,
    numbers,
)

_BLOCK = FEW + 1
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
        raise _misfit(operation) from None


def _misfit(operation: Any) -> UnprovenError:
    """Returns the error for an operation that other sizes do not fit."""
    is_unknown = any(one.shape.as_list().count(None) > 1 for one in operation.inputs)
    kind = UnprovenError if is_unknown else RefutedError
    return kind("sizes that fit only some batches")


def array_of(tensor: Any, value: Value, batch: int = FEW) -> Any:
    """Returns what a tensor of numbers is in a batch."""
    if value.numbers:
        return np.array(value.numbers[BATCHES.index(batch)], tensor.dtype.as_numpy_dtype)
    found = tf.get_static_value(tensor)
    if found is None and tensor.op.type in FOLDED:
        inputs = [array_of(one, SAME) for one in tensor.op.inputs]
        found = _run(tensor.op, inputs)[tensor.value_index]
    if found is None:
        raise UnprovenError("a size that is not known")
    if np.any((found != 0) & (found % OTHER_SIZE == 0)):
        raise UnprovenError(
            f"a multiple of {OTHER_SIZE}, which stands for sizes that are not known"
        )
    return found


def numbers_of(operation: Any, values: Values) -> Found:
    """Returns what is computed of sizes and constants alone; as numbers, if there are few."""
    is_plain = all(value.is_plain for value in values)
    try:
        if any(output.shape.rank not in (0, 1) for output in operation.outputs):
            raise UnprovenError("a tensor of the number of rows")
        if operation.type == "Range" and not is_plain:  # which may be too long
            raise UnprovenError("the numbers of the rows")
        inputs = [
            [array_of(*given, batch) for given in zip(operation.inputs, values)]
            for batch in BATCHES
        ]
        results = [_run(operation, of_batch) for of_batch in inputs]
        if len({result[0].shape for result in results}) > 1:
            raise UnprovenError("the numbers of the rows")
        found = [numbers(of_batches) for of_batches in zip(*results)]
        is_constant = not is_plain and any(value.is_plain for value in found)
        if is_constant and not _is_certain(operation, values, inputs):
            raise RefutedError("whether the batch has some number of rows")
        return found
    except UnprovenError:
        if is_plain:
            return SAME
        raise


def _is_certain(operation: Any, values: Values, inputs: Sequence[Sequence[Any]]) -> bool:
    """Whether what is computed of numbers, and is the same for `BATCHES`, is so for all batches.

    Of numbers that grow or fall with the number of rows, it is, unless they are compared with a
    number that they reach: whether there are 16 rows is false for all of `BATCHES`.

    Args:
        inputs: the numbers for each of `BATCHES`.
    """
    is_monotonic = all(value.degree is not None for value in values)
    if operation.type in COMPARING:
        order = {np.sign(float(one) - float(other)) for one, other in inputs}
        return order == {0} or (is_monotonic and len(order) == 1)
    return is_monotonic or operation.type in MOVING | {"GatherV2"}


def _sizes(tensor: Any, value: Value, batch: int = FEW) -> list[int]:
    """Returns the shape of a tensor in a batch."""
    sizes = [OTHER_SIZE if size is None else size for size in tensor.shape.as_list()]
    if value.layout:
        sizes[value.axis] = len(value.layout) // FEW * batch
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


def moved(operation: Any, values: Values) -> Found:
    """Rule for operations that only move entries, or put constants beside them.

    They move the labels of the entries instead. Other inputs than data, such as axes and sizes,
    must be known.
    """
    if operation.type == "Squeeze" and not operation.get_attr("squeeze_dims"):
        raise UnprovenError("tf.squeeze without axes, which also removes that of a single row")
    is_data: list[bool] = []
    for argument in operation.op_def.input_arg:
        count = operation.node_def.attr[argument.number_attr].i if argument.number_attr else 1
        is_data += [argument.type_attr in _DATA] * count
    given = list(zip(is_data, operation.inputs, values))
    if any(moves and not value.is_plain and not value.layout for moves, _, value in given):
        raise RefutedError("the number of rows beside the rows")
    few = [_labels(one, value) if moves else array_of(one, value) for moves, one, value in given]
    labels = _run(operation, few, **_DATA)
    found = [_read(array) for array in labels]
    # Of the large batch, only the shapes are computed.
    many = [
        _sizes(one, value, MANY) if moves else array_of(one, value, MANY)
        for moves, one, value in given
    ]
    with tf.Graph().as_default() as graph:
        inputs = [
            tf.compat.v1.placeholder(one.dtype, size) if moves else tf.constant(size)
            for size, (moves, one, _) in zip(many, given)
        ]
        attributes = dict(operation.node_def.attr)
        try:
            large = graph.create_op(operation.type, inputs, attrs=attributes)
        except ValueError:
            raise _misfit(operation) from None
    for one, array, value in zip(large.outputs, labels, found):
        sizes = list(array.shape)
        if value.layout:
            sizes[value.axis] = len(value.layout) // FEW * MANY
        if one.shape != sizes:
            raise RefutedError("a part of the rows")
    return found


def _labels(tensor: Any, value: Value) -> Any:
    """Returns an array of a tensor's shape with the label of each entry; 0 for constants."""
    sizes = _sizes(tensor, value)
    if not value.layout:
        return np.zeros(sizes, np.int32)
    if np.prod(sizes) > _MOST:
        raise UnprovenError("more entries than are followed")
    rows = np.array(value.layout, np.int32)
    line = rows + _BLOCK
    of_each_row = np.argsort(rows, kind="stable")
    line[of_each_row] += _BLOCK * (np.arange(len(rows), dtype=np.int32) % (len(rows) // FEW))
    later = len(sizes) - value.axis - 1  # the axes after that of the rows
    return np.broadcast_to(line.reshape([-1] + [1] * later), sizes)


def _read(array: Any) -> Value:
    """Returns the value of a tensor, given the label of each entry.

    The rows are along an axis if the entries at each place of that axis belong to one row, and the
    places of each row have the same entries, and the same constants, as those of the others.
    """
    if not np.any(array):
        return SAME
    block, row = np.divmod(array, _BLOCK)
    for axis in range(array.ndim):
        others = tuple(other for other in range(array.ndim) if other != axis)
        line = np.max(row, axis=others)
        is_along = np.all((row == 0) | (row == np.expand_dims(line, others)))
        blocks = [block.compress(line == one, axis) for one in range(1, FEW + 1)]
        is_alike = all(np.array_equal(blocks[0], other) for other in blocks)
        if is_along and is_alike and line.all():
            return Value(Kind.ROWS, axis=axis, layout=tuple(line.tolist()))
    raise RefutedError("a part of the rows, or some rows together with others")
