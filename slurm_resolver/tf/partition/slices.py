"""Rules for slices, which take whole batches from several ones, or parts of other axes.

Of two batches one after another, `x[:n]` is the first one. A replica has its rows of both, and so
takes its own: all limits along the rows are limits of whole batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from slurm_resolver.tf.partition.operation import Operation, count_at, size_at
from slurm_resolver.tf.partition.sizes import COUNTS, is_count
from slurm_resolver.tf.partition.values import (
    SAME,
    NotByPartError,
    Sizes,
    Split,
    Value,
    Want,
    rows,
)


def slice_by_size(op: Operation) -> Split:
    """Slice, of whole batches from several ones, or of other axes."""
    value = op.of_rows()
    begin = count_at(op.numbers(1), value.axis)
    sizes = count_at(op.result_shape(), value.axis)
    if sizes[0] is None:
        raise NotByPartError("an unknown size")
    first = _whole_batches(begin, value)
    count = _whole_batches(sizes, value)
    begins = Sizes(
        value.axis,
        first,
        value.inner,
    )
    part = value._replace(outer=count)
    return op.split(
        part,
        value,
        begins,
        size_at(part),
    )


def _whole_batches(sizes: tuple[Any, Any], value: Value) -> int:
    """Returns how many batches that many places are, for both sizes of the batch."""
    found = set()
    for size, count in zip(sizes, COUNTS):
        batches, rest = divmod(int(size), count * value.inner)
        if rest:
            raise NotByPartError("some of the rows")
        found.add(batches)
    if len(found) > 1:
        raise NotByPartError("some of the rows")
    return found.pop()


KEPT = -1


class Entry(NamedTuple):
    """An entry of the specification of StridedSlice, or an axis that it does not mention.

    Attributes:
        given: the axis of the input; None for a new axis.
        result: the axis of the result; None if the entry picks one place.
        place: in the specification; KEPT for an axis that it does not mention.
    """

    given: int | None
    result: int | None
    place: int


def _entries(op: Operation, count: int, rank: int) -> Iterator[Entry]:
    """Yields the entries of a specification.

    Args:
        count: how many entries it has.
        rank: the number of axes of the input.
    """
    ellipsis, new, picked = (
        op.attribute(f"{name}_mask") for name in ("ellipsis", "new_axis", "shrink_axis")
    )
    given = result = 0
    for place in range(count):
        if ellipsis >> place & 1:
            later = sum(not new >> other & 1 for other in range(place + 1, count))
            kept = range(given, rank - later)
            for axis in kept:
                yield Entry(
                    axis,
                    result,
                    KEPT,
                )
                result += 1
            given += len(kept)
        elif new >> place & 1:
            yield Entry(
                None,
                result,
                place,
            )
            result += 1
        elif picked >> place & 1:
            yield Entry(
                given,
                None,
                place,
            )
            given += 1
        else:
            yield Entry(
                given,
                result,
                place,
            )
            given += 1
            result += 1
    for axis in range(given, rank):
        yield Entry(
            axis,
            result,
            KEPT,
        )
        result += 1


def _is_all(op: Operation, place: int) -> bool:
    """Whether an entry of a specification takes all places."""
    if place == KEPT:
        return True
    if int(op.constant(3)[place]) != 1:
        raise NotByPartError("some of the rows")
    masks = op.attribute("begin_mask") & op.attribute("end_mask")
    return bool(masks >> place & 1)


def _limits(
    op: Operation,
    place: int,
    size: tuple[Any, Any],
    first: int,
) -> tuple[Any, Any]:
    """Returns where a slice begins and ends, for both sizes of the batch.

    Args:
        place: in the specification.
        size: of the axis.
        first: the place of the input that says where slices begin; the next says where they end.
    """
    begins = [0, 0]
    ends = list(size)
    for mask, given, found in (("begin", first, begins), ("end", first + 1, ends)):
        if op.attribute(f"{mask}_mask") >> place & 1:
            continue
        for which, numbers in enumerate(op.numbers(given)):
            number = int(numbers[place])
            found[which] = number + size[which] if number < 0 else min(number, size[which])
    return tuple(begins), tuple(ends)


def _orders_only(operation: Any) -> bool:
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
    count = op.shape(1)[0][0]
    entry = next(
        one
        for one in _entries(
            op,
            count,
            op.rank(),
        )
        if one.given == value.axis
    )
    if _orders_only(op.node.operation):
        return op.split(SAME, value)
    if entry.result is None:
        raise NotByPartError("one of the rows")
    result = value.at(entry.result)
    if _is_all(op, entry.place):
        return op.along(result)
    begin, end = _limits(
        op,
        entry.place,
        count_at(op.shape(), value.axis),
        first=1,
    )
    first = _whole_batches(begin, value)
    last = _whole_batches(end, value)
    if last <= first:
        raise NotByPartError("no rows")
    limits = [
        Sizes(
            entry.place,
            outer,
            value.inner,
        )
        for outer in (first, last)
    ]
    return op.split(
        result._replace(outer=last - first),
        value,
        *limits,
    )


def strided_slice_gradient(op: Operation) -> Split:
    """StridedSliceGrad: what was sliced, beside zeros."""
    value = op.of_rows(4)
    count = op.shape(1)[0][0]
    rank = op.shape(0)[0][0]
    entry = next(
        one
        for one in _entries(
            op,
            count,
            rank,
        )
        if one.result == value.axis
    )
    if entry.given is None:
        raise NotByPartError("rows along a new axis")
    size = count_at(op.result_shape(), entry.given)
    wants: list[Want] = [SAME, SAME, SAME, SAME, value]
    outer = value.outer
    if not _is_all(op, entry.place):
        begin, _ = _limits(
            op,
            entry.place,
            size,
            first=1,
        )
        first = _whole_batches(begin, value)
        outer = _whole_batches(size, value)
        wants[1] = Sizes(
            entry.place,
            first,
            value.inner,
        )
        wants[2] = Sizes(
            entry.place,
            first + value.outer,
            value.inner,
        )
    if not is_count(
        size,
        outer,
        value.inner,
    ):
        raise NotByPartError("another size")
    result = rows(
        entry.given,
        outer,
        value.inner,
    )
    wants[0] = size_at(result)
    return op.split(result, *wants)
