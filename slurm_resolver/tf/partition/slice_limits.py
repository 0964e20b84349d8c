"""Which axes a StridedSlice has, and where it begins and ends along them.

TensorFlow moves a limit that is beyond an axis, such as the end of `x[:100]` if there are 8 rows.
So a limit that depends on N, or is of an axis that does, is known only if it is within the axis for
any N. Sizes are linear in N: it is tested for a single row, and for both samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.values import COUNTS, Pair, Samples

KEPT = 32  # the place of an axis that a specification does not mention
_FEWEST = 1  # row


def axes_of_slice(operation: tf.Operation, count: int, rank: int) -> tuple[list[int], list[int]]:
    """Returns what is known of the axes of a result.

    NumPy has the same rules: it slices an array in which each axis of the input has another stride.

    Args:
        operation: a StridedSlice, or its gradient.
        count: the number of places in its specification.
        rank: the number of axes of the input.

    Returns:
        For each axis, that of the input, which is -1 for a new axis; and its place in the
        specification.
    """
    array = np.lib.stride_tricks.as_strided(
        np.zeros(1, np.int8),
        shape=[KEPT] * rank,
        strides=range(1, rank + 1),
        writeable=False,
    )
    part = array[tuple(_index(operation, place) for place in range(count))]
    return [stride - 1 for stride in part.strides], list(part.shape)


def _index(operation: tf.Operation, place: int) -> Any:
    """Returns the index of NumPy for a place in the specification; a slice's size is its place."""
    ellipsis, new, picked = (
        operation.get_attr(f"{name}_mask") >> place & 1
        for name in ("ellipsis", "new_axis", "shrink_axis")
    )
    if ellipsis:
        return Ellipsis
    if new:
        return None
    return 0 if picked else slice(place)


def is_whole(operation: tf.Operation, place: int) -> bool:
    """Whether a slice has no limits along an axis, given its place in the specification."""
    masks = operation.get_attr("begin_mask") & operation.get_attr("end_mask")
    return place == KEPT or bool(masks >> place & 1)


def certain_limits(
    operation: tf.Operation,
    place: int,
    numbers: Sequence[Samples | None],
    sizes: Pair[Any],
) -> list[Sequence[int]] | None:
    """Returns where a slice begins and ends along an axis for both N.

    Args:
        place: in the specification.
        numbers: of all its begins, and of all its ends, for both N, or None.
        sizes: of the axis, or None.

    Returns:
        None if a limit is unknown, or may be beyond the axis for another N.
    """
    if None in sizes:
        return None
    found: list[Sequence[int]] = []
    for name, default, pair in zip(("begin", "end"), ((0, 0), sizes), numbers):
        is_open = operation.get_attr(f"{name}_mask") >> place & 1
        limits = default if is_open else [int(one[place]) for one in pair or ()]
        if not limits:
            return None
        if max(_for_few(limits)) < 0:  # it is counted from the end
            limits = [limit + size for limit, size in zip(limits, sizes)]
        found.append(limits)
    lines = zip(*map(_for_few, (*found, sizes)))
    return found if all(0 <= begin <= end <= size for begin, end, size in lines) else None


def _for_few(pair: Iterable[int]) -> list[float]:
    """Returns a size that is linear in N, for a single row and for both N."""
    first, second = map(int, pair)
    slope = (second - first) / (COUNTS[1] - COUNTS[0])
    return [first - slope * (COUNTS[0] - _FEWEST), first, second]
