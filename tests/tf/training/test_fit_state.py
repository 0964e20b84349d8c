"""Plain values are saved as bytes, and come back from them."""

from __future__ import annotations

import math
import pickle
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from slurm_resolver.tf.training.fit_state import pack, unpack

PLAIN: list[Any] = [
    None,
    (True, math.inf, "ü"),
    np.float32(0.1),
    np.arange(6, dtype="int16").reshape(2, 3),
    (1, [2.5, {"a": {1, 2}, 3: frozenset()}]),
    np.zeros([0, 4]),
    [np.ones(3)],
    np.arange(3, dtype=">f4"),  # bytes in another order than this machine's
    np.arange(3, dtype=">i8")[1],
    b"a",
    np.array(["a"]),
    np.ones([2], tf.bfloat16.as_numpy_dtype),
    tf.bfloat16.as_numpy_dtype(0.5),
]


@pytest.mark.parametrize("value", PLAIN)
def test_a_plain_value_comes_back(value: Any) -> None:
    again = unpack(pack(value))
    np.testing.assert_equal(again, value)
    assert type(again) is type(value)


MASKED: Any = np.ma.masked_array([1.0, 2.0], [False, True])


@pytest.mark.parametrize("value", [open, [Counter("a")], Path("a"), MASKED])
def test_no_other_value_is_packed(value: Any) -> None:
    with pytest.raises(pickle.UnpicklingError, match="is no plain value"):
        pack(value)


def test_no_module_is_imported_to_look_for_a_class() -> None:
    program = "numpy.f2py.__main__"
    with pytest.raises(pickle.UnpicklingError, match="main is no plain value"):
        unpack(f"c{program}\nmain\n.".encode())
    assert program not in sys.modules
