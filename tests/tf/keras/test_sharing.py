"""The fingerprints of a batch, by which workers compare what they read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from slurm_resolver.tf.keras.origins import Origin
from slurm_resolver.tf.keras.sharing import count_rows, fingerprint, names_of_tensors, share

SMALL = np.arange(12, dtype="float32").reshape(4, 3)
LARGE = np.arange(400, dtype="float32").reshape(4, 100)


def with_other_row(rows: Any, row: int) -> Any:
    changed = rows.copy()
    changed[row, 0] = -1
    return changed


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (SMALL, SMALL.copy(), True),
        (SMALL, with_other_row(SMALL, 2), False),
        (LARGE, with_other_row(LARGE, 0), False),
        (LARGE, with_other_row(LARGE, 3), False),
        (LARGE, with_other_row(LARGE, 2), True),  # too much to look at in each step
    ],
)
def test_a_fingerprint_is_of_the_first_and_the_last_row_and_of_all_small_ones(
    one: Any, other: Any, equal: bool
) -> None:
    found = [fingerprint(tf.constant(rows), Origin.EQUAL).numpy() for rows in (one, other)]
    assert np.array_equal(*found) == equal


BATCHES = {
    "x and y": ((tf.constant(SMALL), tf.ones([4])), ["x", "y"], 4),
    "a dict and weights": (
        ({"a": tf.ones([2, 1]), "b": tf.ones([2])}, None, tf.ones([2])),
        ["x", "x", "sample_weight"],
        2,
    ),
    "a tensor": (tf.ones([5, 2]), ["x"], 5),
    "a number without rows": ((tf.constant(1.0), tf.ones([3])), ["y"], 3),
}


@pytest.mark.parametrize("name", BATCHES)
def test_each_tensor_with_rows_has_one(name: str) -> None:
    batch, names, rows = BATCHES[name]
    shared = share(batch)
    assert names_of_tensors(shared) == names
    assert shared.digest.shape[0] == len(names)
    assert count_rows(batch) == rows
