"""A checkpoint contains state of Keras' `fit` besides variables."""

from __future__ import annotations

import math
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_resolver.tf.training.fit_state import CallbackStates

callback = types.SimpleNamespace
HANDLE = object()


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ({"wait": 0, "patience": 3}, {"wait": 1}, {"wait": 1}),
        ({"best": None}, {"best": 0.5, "new": [1]}, {"best": 0.5, "new": [1]}),
        ({"handle": HANDLE, "count": 0}, {"count": 1}, {"count": 1}),
        ({"model": 1, "monitor_op": None}, {"model": 3, "monitor_op": open}, {}),  # set by Keras
        *(({"a": None, "count": 0}, {"a": a, "count": 1}, {}) for a in (b"a", Path("a"), [HANDLE])),
        ({"a": None, "count": 0}, {"a": np.array([HANDLE]), "count": 1}, {}),
        ({"wait": 1}, {"wait": 1}, {}),
        *(
            ({"value": None}, {"value": value}, {"value": value})
            for value in [
                True,
                math.inf,
                "ü",
                np.float32(0.1),
                np.arange(6, dtype="int16").reshape(2, 3),
                (1, [2.5, {"a": {1, 2}, 3: frozenset()}]),
                np.zeros([0, 4]),
                [np.ones(3)],
            ]
        ),
    ],
)
def test_what_has_changed_is_kept_if_all_of_it_is_plain(before: Any, after: Any, kept: Any) -> None:
    """The second of two callbacks of the same class gets its own state back."""
    first = callback(**before)
    second = callback(**before)
    states = CallbackStates([first, second])
    vars(second).update(after)
    again = [callback(), callback()]
    CallbackStates(again).apply(states.collect())
    np.testing.assert_equal(list(map(vars, again)), [{}, kept])
