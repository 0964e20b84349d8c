"""Rules for slices, which take whole batches from several ones, or parts of other axes.

Of two batches one after another, `x[:n]` is the first one. A replica has its rows of both, and so
takes its own: all limits along the rows are limits of whole batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from slurm_resolver.tf.partition.creation import create
from slurm_resolver.tf.partition.emission import Emission, Split
from slurm_resolver.tf.partition.exactness import KEPT, axes_of_slice, batches, is_whole
from slurm_resolver.tf.partition.operation import RESULT, Operation
from slurm_resolver.tf.partition.values import SAME, NotByPartError, Pair, Sizes, Tensors, Value


def slice_by_size(op: Operation) -> Split:
    """Slice, of whole batches from several ones, or of other axes."""
    value = op.of_rows()
    before = _whole_batches([numbers[value.axis] for numbers in op.numbers(1)], value)
    part = rows_of_result(op, value)
    return op.split(
        part,
        value,
        Sizes(before),
        Sizes(part),
    )


def split(op: Operation) -> Split:
    """Split and SplitV: several batches from each other, or along other axes."""
    data = ("SplitV", "Split").index(op.kind)
    value = op.of_rows(data)
    first = len(op.node.inputs)
    parts = [rows_of_result(op, value, first + turn) for turn in range(len(op.node.outputs))]

    def by_own_sizes(emission: Emission, inputs: Tensors) -> Tensors:
        own = [emission.rows.own * (part.outer * part.inner) for part in parts]
        return create(op.traced, [inputs[0], tf.cast(own, inputs[1].dtype), inputs[2]])

    has_sizes = op.kind == "SplitV" and value.axis in op.axes(2)
    return op.split(
        parts,
        *[SAME] * data,
        value,
        make=by_own_sizes if has_sizes else None,
    )


def rows_of_result(op: Operation, value: Value, place: int = RESULT) -> Value:
    """Returns the rows of a result along the axis of a value."""
    part = _whole_batches(op.size(value.axis, place), value)
    if not part.outer:
        raise NotByPartError("no rows")
    return part


def _whole_batches(sizes: Sequence[float], value: Value) -> Value:
    """Returns the rows of as many batches as that many places are, for both sizes of the batch."""
    count = batches(sizes, value.inner)
    if count is None:
        raise NotByPartError("some of the rows")
    return value._replace(outer=count)


def strided_slice(op: Operation) -> Split:
    """StridedSlice: Python's slices."""
    value = op.of_rows()
    if _orders_only(op.traced):
        return op.split(SAME, value)
    axes, places = axes_of_slice(op.traced, op.rank())
    if value.axis not in axes:
        raise NotByPartError("one of the rows")
    axis = axes.index(value.axis)
    limits = _limits(op, places[axis], op.size(value.axis), value)
    return op.split(rows_of_result(op, value.at(axis)), value, *limits)


def strided_slice_gradient(op: Operation) -> Split:
    """StridedSliceGrad: what was sliced, beside zeros."""
    value = op.of_rows(4)
    axes, places = axes_of_slice(op.traced, op.rank(RESULT))
    axis = axes[value.axis]
    if axis < 0:
        raise NotByPartError("rows along a new axis")
    limits = _limits(op, places[value.axis], op.size(axis, RESULT), value)
    result = rows_of_result(op, value.at(axis))
    return op.split(result, Sizes(result), *limits, SAME, value)


def _limits(op: Operation, place: int, size: Pair[int], value: Value) -> list[Value | Sizes]:
    """Returns where a slice begins and ends in a replica; there are whole batches between.

    Args:
        place: in the specification.
        size: of the axis, for both sizes of the batch.
        value: the rows along the axis.
    """
    if place != KEPT and op.constant(3)[place] != 1:
        raise NotByPartError("some of the rows")
    if is_whole(op.traced, place):
        return [SAME, SAME]
    limits = op.sizes.limits_of_slice(op.node, place, size)
    if not limits:
        raise NotByPartError("some of the rows")
    return [Sizes(_whole_batches(pair, value.at(place))) for pair in limits]


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
