"""The state of Keras' `fit` in a checkpoint, besides variables: plain values, pickled.

Plain values are None, numbers, strings, NumPy arrays, and lists, tuples, sets and dicts of them.
Reading them runs no code that the checkpoint names, but for the functions that make NumPy's arrays.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import tensorflow as tf

# Importing another module of NumPy may run a program.
_MODULES = (
    "numpy",
    "numpy.core.multiarray",
    "numpy._core.multiarray",
    "ml_dtypes",
)
# What makes arrays and NumPy's scalars.
_OF_NUMPY = (
    np.ndarray,
    np.dtype,
    np.zeros(0).__reduce__()[0],
    np.float32(0).__reduce__()[0],
    tf.bfloat16.as_numpy_dtype,
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
        """Returns a function or class of NumPy's arrays; raises an error for all others."""
        if module in _MODULES:
            found = super().find_class(module, name)
            if found in _OF_NUMPY:
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")
