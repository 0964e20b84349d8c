"""The reason of an error of TensorFlow or Keras in one line, as all workers are told it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf
from kinds import Action, Change

from slurm_resolver.tf.causes import cause_of

ROWS = tf.ones([4, 2])


def read(dataset: Any) -> Action:
    """Returns a function that reads a dataset in a graph, as `fit` does."""

    @tf.function  # type: ignore[untyped-decorator]
    def step(iterator: Any) -> Any:
        return next(iterator)

    return lambda: step(iter(dataset))


def rows(change: Change) -> Action:
    return read(tf.data.Dataset.from_tensors(ROWS).map(change))


def python(error: Exception) -> Action:
    def fails(x: Any) -> Any:
        raise error

    return rows(lambda x: tf.py_function(fails, [x], tf.float32))


def generated() -> Iterator[Any]:
    yield from ()
    raise ValueError("record 5\nis broken")


class Reshape(keras.layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return tf.reshape(x, [3, 3])


def layer_in_graph() -> None:
    tf.function(Reshape())(ROWS)


def in_user_code() -> None:
    def fails(x: Any) -> Any:
        raise ValueError("no label")

    tf.function(fails)(ROWS)


SPEC = tf.TensorSpec([])
CAUSES: dict[str, tuple[Action, str]] = {
    "missing file of a dataset": (
        read(tf.data.TextLineDataset(["/missing/rows"])),
        "NotFoundError: /missing/rows; No such file or directory",
    ),
    "Python's own": (python(ValueError("row 7\nhas no label")), "ValueError: row 7 has no label"),
    "one that TensorFlow has no type for": (python(KeyError("label")), "KeyError: 'label'"),
    "TensorFlow's in Python": (
        python(tf.errors.ResourceExhaustedError(None, None, "no memory for rows")),
        "ResourceExhaustedError: no memory for rows",
    ),
    "generator": (
        read(tf.data.Dataset.from_generator(generated, output_signature=SPEC)),
        "ValueError: record 5 is broken",
    ),
    "code that AutoGraph converts": (in_user_code, "ValueError: no label"),
    "layer": (
        layer_in_graph,
        "ValueError: Exception encountered when calling Reshape.call(). Cannot reshape a tensor",
    ),
}


@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_is_one_line_without_traces(name: str) -> None:
    fails, expected = CAUSES[name]
    with pytest.raises(Exception) as caught:  # noqa: PT011 (of many types)
        fails()
    cause = cause_of(caught.value)
    assert cause.startswith(expected)
    assert not [word for word in ("\n", "File", "Graph execution", "node") if word in cause]
    assert "Arguments received" not in cause
    assert len(cause) <= 500
