"""What is computed of the number of rows N in the same way for any N.

Sizes are known for two N. A polynomial of N that agrees with another one for both agrees for all
N, and so do an exact division, and what only moves numbers. Whatever else is computed of N, such as
`N % 3`, `minimum(N, 10)` and `N > 15_000`, may be a coincidence: it counts as unknown.

TensorFlow moves a limit of a slice that is beyond an axis, such as the end of `x[:100]` if there
are 8 rows. So a limit that depends on N, or is of an axis that does, is known only if it is within
the axis for any N. Sizes are linear in N: it is tested for a single row, and for both samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.values import (
    COUNTS,
    NotByPartError,
    Numbers,
    Samples,
    names,
)

# These compute a polynomial, or move entries, or have a given shape.
_EXACT = names("""
    Add AddN AddV2 BroadcastArgs BroadcastGradientArgs BroadcastTo Cast ConcatOffset ConcatV2
    DynamicStitch EnsureShape ExpandDims Fill GatherV2 Identity IdentityN Mul Neg OnesLike Pack
    Pad Prod Range Rank Reshape ReverseV2 Slice Snapshot Split SplitV Squeeze
    StopGradient StridedSlice Sub Sum Tile Transpose Unpack ZerosLike
""")
_DIVISIONS = names("Div FloorDiv RealDiv TruncateDiv")
_EXTREMES = names("Max Maximum Min Minimum")
# These tell the sizes of their inputs.
TELLING = names("Shape ShapeN Size")
_WIDE = (tf.int32, tf.int64)
# These take a part. No number of the samples is certain if an input depends on N, from this place
# on; nor if the steps, at this place, are longer than 1: one may be longer than N.
DECIDED_BY_NUMBERS = {"GatherV2": 1, "Range": 2, "Slice": 1}
STEPS = {"Range": 2, "StridedSlice": 3}
_SMALLER = names("MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 Qr Svd")


def count_of_extremes(operation: tf.Operation) -> int:
    """Returns how many inputs decide about a result's sizes by a maximum or minimum, or as 1.

    They come first.
    """
    if operation.type == "DynamicStitch":  # of the places
        return len(operation.inputs) // 2
    if operation.type == "Squeeze":  # which also removes the axis of a single row
        return int(not operation.get_attr("squeeze_dims"))
    return int(operation.type in _SMALLER)


def batches(sizes: Sequence[float] | None, inner: int = 1) -> int | None:
    """Returns how many batches of N · inner places the sizes for both N are; None for others."""
    if sizes is None:
        return None
    divided = (divmod(int(size), count * inner) for size, count in zip(sizes, COUNTS))
    (outer, rest), *others = set(divided)
    return None if rest or others else outer


def is_exact(operation: tf.Operation, numbers: Iterable[Samples | None]) -> bool:
    """Whether the integers that an operation computes for both N are so for any N.

    Args:
        operation: of TensorFlow.
        numbers: for each input, its numbers for both N; None if they are unknown.
    """
    kind = operation.type
    if kind in TELLING:
        return True
    # Other integers may wrap around, so that 32 · N is 0 in a uint8 for both.
    if not all(tensor.dtype in _WIDE for tensor in (*operation.inputs, *operation.outputs)):
        return False
    if kind not in _DIVISIONS | _EXTREMES:
        return kind in _EXACT
    first, second = numbers
    if not (first and second):
        return False
    if kind in _DIVISIONS:
        return _is_exact_division(first, second)
    # All are one number, such as the N of each input of a loop over rows.
    others = first if kind in ("Max", "Min") else second  # those have axes as second inputs
    return all(np.unique(np.append(*pair)).size == 1 for pair in zip(first, others))


def _is_exact_division(dividends: Samples, divisors: Samples) -> bool:
    """Whether nothing remains for any N: the quotient is a number, or a multiple of N."""
    quotients = []
    for dividend, divisor in zip(dividends, divisors):
        if dividend.size != 1 or divisor.size != 1 or not divisor or dividend % divisor:
            return False
        quotients.append(int(dividend // divisor))
    return quotients[0] == quotients[1] or batches(quotients) is not None


# --- Slices --------------------------------------------------------------------------------------

KEPT = 32  # the place of an axis that a specification does not mention


def axes_of_slice(operation: tf.Operation, rank: int) -> tuple[list[int], list[int]]:
    """Returns what is known of the axes of a result.

    NumPy has the same rules: it slices an array in which each axis of the input has another stride.

    Args:
        operation: a StridedSlice, or its gradient.
        rank: the number of axes of the input.

    Returns:
        For each axis, that of the input, which is -1 for a new axis; and its place in the
        specification.

    Raises:
        NotByPartError: if the number of places in the specification is unknown.
    """
    count = operation.inputs[1].shape.num_elements()
    if count is None:
        raise NotByPartError("an unknown size")
    array = np.lib.stride_tricks.as_strided(
        np.zeros(1, np.int8),
        shape=[KEPT] * rank,
        strides=range(1, rank + 1),
        writeable=False,
    )
    indices: list[Any] = [slice(place) for place in range(count)]  # its size is its place
    for mask, index in (("shrink_axis", 0), ("new_axis", None), ("ellipsis", Ellipsis)):
        for place in range(count):
            if has_bit(operation, mask, place):
                indices[place] = index
    part = array[tuple(indices)]
    return [stride - 1 for stride in part.strides], list(part.shape)


def has_bit(operation: tf.Operation, mask: str, place: int) -> bool:
    """Whether a mask of a slice has a place of its specification."""
    return bool(operation.get_attr(f"{mask}_mask") >> place & 1)


def is_whole(operation: tf.Operation, place: int) -> bool:
    """Whether a slice has no limits along an axis, given its place in the specification."""
    return place == KEPT or all(has_bit(operation, mask, place) for mask in ("begin", "end"))


def line(first: int, second: int) -> Numbers:
    """Returns a size that is linear in N, for a single row and for both N."""
    slope = (second - first) / (COUNTS[1] - COUNTS[0])
    return np.array([first - slope * (COUNTS[0] - 1), first, second])
