"""The state of Keras' `fit` in a checkpoint, besides variables: plain values, pickled.

Plain values are None, numbers, strings, NumPy arrays, and lists, tuples, sets and dicts of them.
Reading them runs no code that the checkpoint names, but for the functions that make NumPy's arrays.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

# What makes arrays and NumPy's scalars, in NumPy 1 and 2. No other name may be imported.
_OF_ARRAYS = (
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "ml_dtypes.bfloat16",
)


def pack(value: object) -> bytes:
    """Returns a plain value as bytes; raises an error for any other value."""
    packed = pickle.dumps(value, protocol=4)
    unpack(packed)
    return packed


def unpack(packed: bytes) -> Any:
    """Returns the value that `pack` was given."""
    return _Reader(io.BytesIO(packed)).load()


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Returns a function or class that makes arrays; raises an error for all others."""
        if f"{module}.{name}" not in _OF_ARRAYS:
            raise pickle.UnpicklingError(f"{module}.{name} is no plain value")
        return super().find_class(module, name)
