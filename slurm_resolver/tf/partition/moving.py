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

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.emission import Split
from slurm_resolver.tf.partition.exactness import batches
from slurm_resolver.tf.partition.operation import RESULT, Operation
from slurm_resolver.tf.partition.rules import by_equation
from slurm_resolver.tf.partition.sizes import is_count
from slurm_resolver.tf.partition.slices import rows_of_result
from slurm_resolver.tf.partition.values import (
    SAME,
    NotByPartError,
    Shape,
    Sizes,
    Value,
    rows,
)


def reshape(op: Operation) -> Split:
    """Reshape, if the places of the rows are along one axis of the result."""
    value = op.of_rows()
    if not is_count(op.size(value.axis), value):
        raise NotByPartError("another number of rows")
    # A row for each axis, and a column for each N. Python's numbers have no largest one.
    before, after = (np.array(op.shape(place), dtype=object) for place in (0, RESULT))
    if None in before or None in after or not after.all():
        raise NotByPartError("an unknown size, or no entries")
    outer = before[: value.axis].prod(axis=0) * value.outer
    inner = before[value.axis + 1 :].prod(axis=0) * value.inner
    for axis in range(len(after)):
        first = after[:axis].prod(axis=0)
        last = after[axis + 1 :].prod(axis=0)
        if not (outer % first).any() and not (inner % last).any():
            result, *others = {*map(rows, (axis, axis), outer // first, inner // last)}
            if not others:
                return op.split(result, value, Sizes(result))
    raise NotByPartError("rows are mixed")


def transpose(op: Operation) -> Split:
    """Transpose, by a constant order of the axes."""
    term = op.letters()
    return by_equation(op, f"{term}->" + "".join(term[axis] for axis in op.constant(1)))


def inserted(op: Operation, axis: int, count: int = 1) -> Split:
    """ExpandDims, OneHot, and Pack, which add an axis.

    Args:
        count: of tensors.
    """
    term = op.letters()
    axis %= len(term) + 1
    return by_equation(op, ",".join([term] * count) + f"->{term[:axis]}_{term[axis:]}")


def ensured(op: Operation) -> Split:
    """EnsureShape, with any number of rows. The rank of the input may be unknown."""
    value = op.of_rows()
    if tf.TensorShape(op.attribute("shape"))[value.axis] is not None:
        raise NotByPartError("a constant number of rows")
    return op.split(value, value)


def repeated(op: Operation) -> Split:
    """BroadcastTo and Fill: of rows, or of one entry for all rows."""
    if op.divided:
        return by_equation(op, "...,#->...")
    is_filled = op.kind == "Fill"
    if op.tensor(not is_filled).shape.num_elements() is None:  # the vector of sizes
        raise NotByPartError("an unknown rank")
    value = first_rows(op.shape(RESULT))
    if is_filled:
        return op.split(value, Sizes(value))
    axis = value.axis - op.rank(RESULT) + op.rank()
    if axis >= 0 and op.size(axis) != (1, 1):
        raise NotByPartError("rows that are not one entry")
    return op.split(
        value,
        SAME,
        Sizes(value),
    )


def first_rows(shape: Shape) -> Value:
    """Returns the rows along the first axis whose size is a multiple of N."""
    for axis, sizes in enumerate(shape):
        outer = batches(sizes)
        if outer:
            return rows(axis, outer)
    raise NotByPartError("no rows")


def tile(op: Operation) -> Split:
    """Tile, also of the rows one batch after another."""
    value = op.of_rows()
    return op.split(rows_of_result(op, value), value)


def to_blocks(op: Operation) -> Split:
    """SpaceToBatchND and BatchToSpaceND: each block of an image is in another batch of all rows.

    A convolution with a `dilation_rate` is one of the blocks between the two.
    """
    if op.values[0].axis:
        raise NotByPartError("blocks of the rows")
    return tile(op)


def concatenate(op: Operation) -> Split:
    """ConcatV2: of tensors with rows each, or of rows one batch after another."""
    *parts, _ = op.values
    (axis,) = op.axes(len(parts))
    value = op.values[op.divided[0]]._replace(outer=1)
    if value.axis == axis and {part._replace(outer=1) for part in parts} == {value}:
        return op.split(value._replace(outer=sum(part.outer for part in parts)), *parts)
    term = op.letters(0, [axis])
    return by_equation(op, ",".join([term] * len(parts)) + f"->{term}")
