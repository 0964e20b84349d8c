"""What is computed of the number of rows N in the same way for any N.

Sizes are known for two N. A polynomial of N that agrees with another one for both agrees for all
N, and so do an exact division, and what only moves numbers. Whatever else is computed of N, such as
`N % 3`, `minimum(N, 10)` and `N > 15_000`, may be a coincidence: it counts as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.partition.values import COUNTS, Samples, names

# These compute a polynomial, or move entries, or have a given shape.
_EXACT = names("""
    Add AddN AddV2 BroadcastArgs BroadcastGradientArgs BroadcastTo Cast ConcatOffset ConcatV2
    DynamicStitch EnsureShape ExpandDims Fill GatherV2 Identity IdentityN Mul Neg OnesLike Pack
    Pad Prod Range Rank Reshape ReverseV2 Slice Snapshot Split SplitV Squeeze
    StopGradient StridedSlice Sub Sum Tile Transpose Unpack ZerosLike
""")
_DIVISIONS = names("Div FloorDiv RealDiv TruncateDiv")
# These tell the sizes of their inputs.
_TELLING = names("Shape ShapeN Size")
# These take a part: if N says which one, no number of the samples is certain.
TAKING = names("GatherV2 Slice StridedSlice")


def is_exact(operation: tf.Operation, numbers: Iterable[Samples | None]) -> bool:
    """Whether the integers that an operation computes for both N are so for any N.

    Args:
        operation: of TensorFlow.
        numbers: for each input, its numbers for both N; None if they are unknown.
    """
    kind = operation.type
    if kind in _TELLING:
        return True
    if not all(tensor.dtype.is_integer for tensor in (*operation.inputs, *operation.outputs)):
        return False
    if kind in ("Max", "Min"):  # of a single number
        data, _ = numbers
        return data is not None and np.size(data[0]) == np.size(data[1]) == 1
    if kind in ("Maximum", "Minimum"):  # of equal sizes
        first, second = numbers
        if first is None or second is None:
            return False
        return all(map(np.array_equal, first, second))
    if kind in _DIVISIONS:
        return _is_exact_division(*numbers)
    return kind in _EXACT


def _is_exact_division(dividends: Samples | None, divisors: Samples | None) -> bool:
    """Whether nothing remains for any N: the quotient is a number, or a multiple of N."""
    if dividends is None or divisors is None:
        return False
    for dividend, divisor in zip(dividends, divisors):
        if not np.all(divisor) or np.any(dividend % divisor):
            return False
    first, second = (one // other for one, other in zip(dividends, divisors))
    is_multiple = not np.any(first % COUNTS[0]) and np.array_equal(
        first * COUNTS[1], second * COUNTS[0]
    )
    return is_multiple or np.array_equal(first, second)
