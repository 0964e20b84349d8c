"""What is computed of the number of rows N in the same way for any N.

Sizes are known for two N. A polynomial of N that agrees with another one for both agrees for all
N, and so do an exact division, and what only moves numbers. Whatever else is computed of N, such as
`N % 3`, `minimum(N, 10)` and `N > 15_000`, may be a coincidence: it counts as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slurm_resolver.tf.partition.values import COUNTS, names

# These compute a polynomial, or move entries, or have a given shape.
_EXACT = names("""
    Add AddN AddV2 BroadcastArgs BroadcastGradientArgs BroadcastTo Cast ConcatOffset ConcatV2
    DynamicStitch EnsureShape ExpandDims Fill GatherV2 Identity IdentityN Mul Neg OnesLike Pack
    Pad Prod Range Rank Reshape ReverseV2 Slice Snapshot Split SplitV Squeeze
    StopGradient StridedSlice Sub Sum Tile Transpose Unpack ZerosLike
""")
_DIVISIONS = names("Div FloorDiv RealDiv TruncateDiv")
# These tell the sizes of their inputs.
TELLING = names("Shape ShapeN Size")
# These take a part: if N says which one, no shape of the samples is certain.
TAKING = names("GatherV2 Slice StridedSlice")
# These divide sizes, and fail if something remains.
DIVIDING = names("BatchToSpaceND Reshape SpaceToBatchND Split SplitV")


def is_exact(operation: Any, numbers: Sequence[Any]) -> bool:
    """Whether what an operation computes for both N is so for any N.

    Args:
        operation: of TensorFlow.
        numbers: for each input, its numbers for both N; None if they are unknown.
    """
    kind = operation.type
    if kind in TELLING:
        return True
    dtypes = [tensor.dtype for tensor in (*operation.inputs, *operation.outputs)]
    if not all(dtype.is_integer for dtype in dtypes):
        # A float tensor passes only its shape on.
        is_float = operation.outputs[0].dtype.is_floating
        return kind in _EXACT and kind != "Cast" and is_float
    if kind in ("Max", "Min"):  # of a single number
        return numbers[0] is not None and np.size(numbers[0][0]) == np.size(numbers[0][1]) == 1
    if kind in ("Maximum", "Minimum"):
        return _is_certain_choice(*numbers)
    if kind in _DIVISIONS:
        return _is_exact_division(*numbers)
    return kind in _EXACT


def _is_certain_choice(first: Any, second: Any) -> bool:
    """Whether a maximum or minimum is of equal sizes, or of a multiple of N and at most 1.

    N - 16 is no multiple: the maximum of that and 0 depends on N.
    """
    if first is None or second is None:
        return False
    if all(np.array_equal(one, other) for one, other in zip(first, second)):
        return True
    return any(
        np.array_equal(*pair) and np.all(pair[0] <= 1) and _are_multiples(*other)
        for pair, other in ((first, second), (second, first))
    )


def _are_multiples(first: Any, second: Any) -> bool:
    """Whether each number is the same for any N, or a multiple of N and positive."""
    ratio = [
        np.multiply(one, count, dtype=np.int64) for one, count in zip((first, second), COUNTS[::-1])
    ]
    are_multiples = np.equal(*ratio) & np.greater(first, 0)
    return bool(np.all(are_multiples | np.equal(first, second)))


def _is_exact_division(dividends: Any, divisors: Any) -> bool:
    """Whether nothing remains for any N.

    By a number that does not depend on N, a · N + b is divided without a remainder if a and b are.
    Otherwise, the quotient is a number, or a multiple of N.
    """
    if dividends is None or divisors is None:
        return False
    for dividend, divisor in zip(dividends, divisors):
        if not np.all(divisor) or np.any(dividend % divisor):
            return False
    first, second = (one // other for one, other in zip(dividends, divisors))
    if not np.array_equal(*divisors):
        is_number = np.array_equal(first, second)
        return is_number or np.array_equal(first * COUNTS[1], second * COUNTS[0])
    slope, left = np.divmod(second - first, COUNTS[1] - COUNTS[0])
    # Another polynomial has a larger slope between the two N.
    return not np.any(left) and bool(np.all(np.abs(slope) < COUNTS[0]))
