"""The graph of a dataset tells whether the batches of earlier epochs must be drawn again."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from slurm_resolver.tf.training.dataset_graph import look_through

ROWS = tf.data.Dataset.range(9)
SHUFFLED = ROWS.shuffle(9, seed=1)


def draw(row: Any) -> Any:
    return tf.random.uniform((), seed=1)


def branches(row: Any) -> Any:
    index = tf.cast(row % 2, tf.int32)
    return tf.switch_case(index, [lambda: 1.0, lambda: tf.random.uniform(())])


def shuffled(row: Any) -> Any:
    """The seeds are a constant, 0, and what an operation computes."""
    tf.random.set_seed(0)  # of this function
    return ROWS.shuffle(9, seed=2)


# A dataset, whether to draw again, and how the reason begins why another run reads other data.
DATASETS: Any = [
    (ROWS.map(lambda row: row + 1).batch(3), False, ""),
    (SHUFFLED.map(lambda row: row + 1, num_parallel_calls=2).batch(3).prefetch(1), False, ""),
    (SHUFFLED.filter(lambda row: row > 1).take(5), False, ""),
    (ROWS.cache().shuffle(9, seed=1), False, ""),
    (ROWS.map(draw), False, ""),
    (ROWS.map(draw).map(lambda row: row, num_parallel_calls=2), False, ""),
    (SHUFFLED.cache(), True, ""),
    (SHUFFLED.shuffle(9, seed=2), True, ""),
    (ROWS.concatenate(SHUFFLED), True, ""),
    (ROWS.shuffle(9), False, "ShuffleDatasetV3 in the data has no seed"),
    (ROWS.map(lambda row: tf.random.uniform(())), False, "RandomUniform in the data has no seed"),
    (
        ROWS.filter(lambda row: tf.random.uniform(()) < 0.5),
        False,
        "RandomUniform in the data has no seed",
    ),
    (ROWS.map(branches), False, "RandomUniform in the data has no seed"),
    (ROWS.flat_map(lambda row: ROWS.shuffle(9)), False, "ShuffleDatasetV3 in the data has no seed"),
    (ROWS.flat_map(lambda row: ROWS.shuffle(9, seed=1)), False, ""),
    (ROWS.flat_map(shuffled), False, ""),
    (
        ROWS.map(draw, num_parallel_calls=2),
        False,
        "a map with num_parallel_calls calls RandomUni",
    ),
    (
        ROWS.flat_map(lambda row: ROWS.map(draw, num_parallel_calls=2)),
        False,
        "a map with num_parallel_calls calls RandomUni",
    ),
    (
        ROWS.map(lambda row: row, num_parallel_calls=2, deterministic=False),
        False,
        "deterministic=False",
    ),
]


@pytest.mark.parametrize(("dataset", "again", "other"), DATASETS)
def test_batches_are_drawn_again_only_where_later_ones_depend_on_them(
    dataset: Any, again: bool, other: str
) -> None:
    findings = look_through(dataset)
    assert findings.again == again
    assert findings.other[: len(other) or None] == other
