"""The state of Keras' `fit` in a checkpoint, besides variables: plain values, pickled.

Plain values are None, numbers, texts, NumPy arrays, and lists, tuples, sets and dicts of them.
Reading them runs no code that the checkpoint names, but for the functions that make NumPy's arrays.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

_OF_NUMPY = (
    "_frombuffer",
    "_reconstruct",
    "dtype",
    "ndarray",
    "scalar",
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
        if module.split(".")[0] != "numpy" or name not in _OF_NUMPY:
            raise pickle.UnpicklingError(f"{module}.{name} is no plain value")
        return super().find_class(module, name)
