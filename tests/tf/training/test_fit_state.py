"""Plain values are saved as text, and come back from it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

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
]


@pytest.mark.parametrize("value", PLAIN)
def test_a_plain_value_comes_back(value: Any) -> None:
    again = unpack(pack(value))
    np.testing.assert_equal(again, value)
    assert type(again) is type(value)


MASKED: Any = np.ma.masked_array([1.0, 2.0], [False, True])


@pytest.mark.parametrize("value", [b"a", open, [Counter("a")], np.array(["a"]), MASKED])
def test_no_other_value_has_a_text(value: Any) -> None:
    with pytest.raises(TypeError):
        pack(value)
