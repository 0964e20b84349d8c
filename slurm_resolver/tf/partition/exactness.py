"""What is computed of the number of rows N in the same way for any N.

Sizes are known for two N. A polynomial of N that agrees with another one for both agrees for all
N, and so do an exact division, and what only moves numbers. Whatever else is computed of N, such as
`N % 3`, `minimum(N, 10)` and `N > 15_000`, may be a coincidence: it counts as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.values import COUNTS, Numbers, Samples, names

# These compute a polynomial, or move entries, or have a given shape.
_EXACT = names("""
    Add AddN AddV2 BroadcastArgs BroadcastGradientArgs BroadcastTo Cast ConcatOffset ConcatV2
    DynamicStitch EnsureShape ExpandDims Fill GatherV2 Identity IdentityN Mul Neg OnesLike Pack
    Pad Prod Range Rank Reshape ReverseV2 Slice Snapshot Split SplitV Squeeze
    StopGradient StridedSlice Sub Sum Tile Transpose Unpack ZerosLike
""")
# These tell the sizes of their inputs.
TELLING = names("Shape ShapeN Size")
_WIDE = (tf.int32, tf.int64)
# These take a part, or have the smaller one of two sizes. No number of the samples is certain if an
# input depends on N, from this place on.
DECIDED_BY_NUMBERS = {
    **dict.fromkeys(names("GatherV2 Slice"), 1),
    **dict.fromkeys(names("MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 Qr Svd"), 0),
    "Range": 2,
}


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
    if kind in _EXACT_IF:
        first, second = numbers
        return bool(first and second and _EXACT_IF[kind](first, second))
    return kind in _EXACT


def _is_one_number(numbers: Samples, _: Samples) -> bool:
    """Whether all entries are the same number, such as the N of each input of a loop over rows."""
    return all(np.unique(one).size == 1 for one in numbers)


def _are_equal(first: Samples, second: Samples) -> bool:
    return all(map(np.array_equal, first, second))


def _is_exact_division(dividends: Samples, divisors: Samples) -> bool:
    """Whether nothing remains for any N: the quotient is a number, or a multiple of N."""
    for dividend, divisor in zip(dividends, divisors):
        if not np.all(divisor) or np.any(dividend % divisor):
            return False
    first, second = (one // other for one, other in zip(dividends, divisors))
    return np.array_equal(first, second) or _is_multiple(first, second)


def _is_multiple(first: Numbers, second: Numbers) -> bool:
    """Whether numbers for both N are multiples of N."""
    counts, remainders = np.divmod(first, COUNTS[0])
    return not np.any(remainders) and np.array_equal(counts * COUNTS[1], second)


# These are exact if their inputs' numbers pass a test.
_EXACT_IF = {
    "Max": _is_one_number,
    "Maximum": _are_equal,
    "Min": _is_one_number,
    "Minimum": _are_equal,
    **dict.fromkeys(names("Div FloorDiv RealDiv TruncateDiv"), _is_exact_division),
}
