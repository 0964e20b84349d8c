"""Rules for operations that move entries: they reshape, cut, join and repeat tensors.

The places of a replica's rows must still be one block of n · inner for each of the outer blocks::

    x has the shape          result           its rows
    [N, 6]                   [N, 2, 3]        axis 0
    [N, 6]                   [N * 6]          axis 0, inner = 6
    concat([x, x], axis=0)   [2 * N, 6]       axis 0, outer = 2
    transpose(x)             [6, N]           axis 1
    [N, 6]                   [6, N]           none: rows are mixed, so it is computed whole
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slurm_resolver.tf.partition.operation import Operation, count_at, size_at
from slurm_resolver.tf.partition.sizes import Pair, is_count
from slurm_resolver.tf.partition.values import (
    COUNTS,
    SAME,
    NotByPartError,
    Split,
    Value,
    rows,
)


def reshape(op: Operation) -> Split:
    """Reshape, if the places of the rows are along one axis of the result."""
    value = op.of_rows()
    given = op.shape()
    result = op.result_shape()
    if None in given[0] or None in result[0]:
        raise NotByPartError("an unknown size")
    for axis in range(len(result[0])):
        found = {
            _reshaped(
                value,
                before,
                after,
                axis,
                count,
            )
            for before, after, count in zip(
                given,
                result,
                COUNTS,
            )
        }
        if len(found) == 1 and None not in found:
            (one,) = found
            assert one is not None
            return op.split(
                one,
                value,
                size_at(one),
            )
    raise NotByPartError("rows are mixed")


def _reshaped(
    value: Value,
    before: Any,
    after: Any,
    axis: int,
    count: int,
) -> Value | None:
    """Returns the rows along an axis of the result; None if they are not along it.

    Args:
        before: the shape of the input.
        after: the shape of the result.
        count: the number of rows.
    """
    first = int(np.prod(before[: value.axis])) * value.outer
    last = int(np.prod(before[value.axis + 1 :])) * value.inner
    earlier = int(np.prod(after[:axis]))
    later = int(np.prod(after[axis + 1 :]))
    if not earlier or not later or first % earlier or last % later:
        return None
    outer = first // earlier
    inner = last // later
    return (
        rows(
            axis,
            outer,
            inner,
        )
        if after[axis] == outer * count * inner
        else None
    )


def transpose(op: Operation) -> Split:
    """Transpose, by a constant order of the axes."""
    value = op.of_rows()
    order = [int(axis) for axis in op.constant(1)]
    return op.along(value.at(order.index(value.axis)))


def expand(op: Operation) -> Split:
    """ExpandDims."""
    value = op.of_rows()
    (axis,) = op.axes(1, op.rank() + 1)
    return op.along(value.at(value.axis + (axis <= value.axis)))


def squeeze(op: Operation) -> Split:
    """Squeeze of given axes. Without axes, it also removes that of a single row."""
    value = op.of_rows()
    axes = [axis % op.rank() for axis in op.attribute("squeeze_dims")]
    if not axes or value.axis in axes:
        raise NotByPartError("tf.squeeze without axes")
    return op.along(value.at(value.axis - sum(axis < value.axis for axis in axes)))


def broadcast(op: Operation) -> Split:
    """BroadcastTo: of rows, or of one entry for all rows."""
    result = op.result_shape()
    if op.divided:
        value = op.of_rows()
        axis = value.axis + op.result_rank() - op.rank()
        if not is_count(
            count_at(result, axis),
            value.outer,
            value.inner,
        ):
            raise NotByPartError("another size")
        return op.split(
            value.at(axis),
            value,
            size_at(value, axis),
        )
    value = first_rows(result)
    axis = value.axis - op.result_rank() + op.rank()
    if axis >= 0 and count_at(op.shape(), axis) != (1, 1):
        raise NotByPartError("rows that are not one entry")
    return op.split(
        value,
        SAME,
        size_at(value),
    )


def fill(op: Operation) -> Split:
    """Fill with one entry for all rows."""
    value = first_rows(op.result_shape())
    return op.split(
        value,
        size_at(value),
        SAME,
    )


def first_rows(shapes: Pair) -> Value:
    """Returns the rows along the first axis whose size is a multiple of N."""
    for axis in range(len(shapes[0])):
        sizes = count_at(shapes, axis)
        outer = sizes[0] // COUNTS[0] if sizes[0] else 0
        if outer and is_count(
            sizes,
            outer,
            1,
        ):
            return rows(axis, outer)
    raise NotByPartError("no rows")


def tile(op: Operation) -> Split:
    """Tile, also of the rows one batch after another."""
    value = op.of_rows()
    multiples = op.sizes.numbers(op.node.inputs[1])
    if multiples is None:
        if count_at(op.shape(), value.axis) != count_at(op.result_shape(), value.axis):
            raise NotByPartError("unknown multiples")
        return op.along(value)
    times, others = count_at(multiples, value.axis)
    if times != others:
        raise NotByPartError("N times the rows")
    return op.along(value._replace(outer=value.outer * int(times)))


def pad(op: Operation) -> Split:
    """Pad, but not of the rows."""
    value = op.of_rows()
    if np.any(op.constant(1)[value.axis]):
        raise NotByPartError("rows are padded")
    return op.along(value)


def concatenate(op: Operation) -> Split:
    """ConcatV2: of tensors with rows each, or of rows one batch after another."""
    places = range(len(op.values) - 1)
    value = op.values[op.divided[0]]
    (axis,) = op.axes(len(op.values) - 1, op.rank())
    if axis != value.axis:
        return op.split(value, *[op.beside(place, value) for place in places])
    parts = [op.values[place] for place in places]
    if any(not part.has_rows or part.axis != axis or part.inner != value.inner for part in parts):
        raise NotByPartError("rows beside others")
    return op.split(value._replace(outer=sum(part.outer for part in parts)), *parts)


def pack(op: Operation) -> Split:
    """Pack: tensors are joined along a new axis."""
    value = op.values[op.divided[0]]
    axis = op.attribute("axis") % (op.rank() + 1)
    wants = [op.beside(place, value) for place in range(len(op.values))]
    return op.split(value.at(value.axis + (axis <= value.axis)), *wants)


def unpack(op: Operation) -> Split:
    """Unpack: a tensor for each entry of an axis."""
    value = op.of_rows()
    axis = op.attribute("axis") % op.rank()
    if axis == value.axis:
        raise NotByPartError("a tensor for each row")
    return op.along(value.at(value.axis - (axis < value.axis)))


def split(op: Operation, data: int, axes: int) -> Split:
    """Split and SplitV, also of a batch after another from each other.

    Args:
        data: the place of the tensor.
        axes: the place of the axis.
    """
    value = op.of_rows(data)
    (axis,) = op.axes(axes, op.rank(data))
    if axis != value.axis:
        return op.along(value, data)
    count = len(op.node.outputs)
    if op.kind != "Split" or value.outer % count:
        raise NotByPartError("some of the rows")
    return op.along(value._replace(outer=value.outer // count), data)
