"""Rules for slices, which take whole batches from several ones, or parts of other axes.

Of two batches one after another, `x[:n]` is the first one. A replica has its rows of both, and so
takes its own: all limits along the rows are limits of whole batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from slurm_resolver.tf.partition.emission import Split
from slurm_resolver.tf.partition.operation import Operation, size_at
from slurm_resolver.tf.partition.sizes import is_count
from slurm_resolver.tf.partition.slice_limits import (
    KEPT,
    axes_of_slice,
    certain_limits,
    is_whole,
)
from slurm_resolver.tf.partition.values import (
    COUNTS,
    SAME,
    NotByPartError,
    Pair,
    Sizes,
    Value,
    Want,
    rows,
)


def slice_by_size(op: Operation) -> Split:
    """Slice, of whole batches from several ones, or of other axes."""
    value = op.of_rows()
    begins = [numbers[value.axis] for numbers in op.numbers(1)]
    first = _whole_batches(begins, value)
    part = value._replace(outer=_whole_batches(op.result_size(value.axis), value))
    if not part.outer:
        raise NotByPartError("no rows")
    begin = Sizes(value.axis, first, value.inner)
    return op.split(
        part,
        value,
        begin,
        size_at(part),
    )


def _whole_batches(sizes: Sequence[int], value: Value) -> int:
    """Returns how many batches that many places are, for both sizes of the batch."""
    batches = int(sizes[0]) // (COUNTS[0] * value.inner)
    if not is_count(sizes, batches, value.inner):
        raise NotByPartError("some of the rows")
    return batches


def _takes_all(op: Operation, place: int) -> bool:
    """Whether a slice takes all entries of an axis, given its place in the specification."""
    if place != KEPT and int(op.constant(3)[place]) != 1:
        raise NotByPartError("some of the rows")
    return is_whole(op.node.operation, place)


def _limits(op: Operation, place: int, size: Pair[int], value: Value) -> list[Sizes]:
    """Returns where a slice begins and ends in a replica; there are whole batches between.

    Args:
        place: in the specification.
        size: of the axis, for both sizes of the batch.
        value: the rows along the axis.
    """
    numbers = [op.numbers(given) for given in (1, 2)]
    limits = certain_limits(
        op.node.operation,
        place,
        numbers,
        size,
    )
    if limits is None:
        raise NotByPartError("some of the rows")
    return [Sizes(place, _whole_batches(pair, value), value.inner) for pair in limits]


def _orders_only(operation: tf.Operation) -> bool:
    """Whether a result is only compared with itself, which is true in each replica.

    `tf.recompute_grad` does so to compute something again after a gradient is there, and not
    before. Own rows are there at the same time.
    """
    for kind in ("Max", "Cast", "Equal"):
        (result,) = operation.outputs
        users = set(result.consumers())
        is_output = any(result is one for one in operation.graph.outputs)
        if is_output or [one.type for one in users] != [kind]:
            return False
        (operation,) = users
    return operation.inputs[0] is operation.inputs[1] and operation.inputs[0].dtype == tf.bool


def strided_slice(op: Operation) -> Split:
    """StridedSlice: Python's slices."""
    value = op.of_rows()
    if _orders_only(op.node.operation):
        return op.split(SAME, value)
    axes, places = axes_of_slice(op.node.operation, op.size(0, 1)[0], op.rank())
    if value.axis not in axes:
        raise NotByPartError("one of the rows")
    axis = axes.index(value.axis)
    if _takes_all(op, places[axis]):
        return op.split(value.at(axis), value)
    begin, end = _limits(
        op,
        places[axis],
        op.size(value.axis),
        value,
    )
    if end.outer <= begin.outer:
        raise NotByPartError("no rows")
    return op.split(
        rows(axis, end.outer - begin.outer, value.inner),
        value,
        begin,
        end,
    )


def strided_slice_gradient(op: Operation) -> Split:
    """StridedSliceGrad: what was sliced, beside zeros."""
    value = op.of_rows(4)
    axes, places = axes_of_slice(op.node.operation, op.size(0, 1)[0], op.result_rank())
    axis = axes[value.axis]
    place = places[value.axis]
    if axis < 0:
        raise NotByPartError("rows along a new axis")
    size = op.result_size(axis)
    result = rows(axis, _whole_batches(size, value), value.inner)
    limits: Sequence[Want] = [SAME, SAME]
    if not _takes_all(op, place):
        limits = _limits(
            op,
            place,
            size,
            value,
        )
    return op.split(result, size_at(result), *limits, SAME, value)
