"""Which tensors of a dataset's elements are the same in all workers, by its operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from slurm_resolver.tf.keras.origins import find_origins

IMAGES = np.ones((8, 4, 4, 1), "float32")
LABELS = np.arange(8.0)


def pairs() -> Any:
    return tf.data.Dataset.from_tensor_slices((IMAGES, LABELS))


def images() -> Any:
    return tf.data.Dataset.from_tensor_slices(IMAGES)


def flip(image: Any, *label: Any) -> Any:
    """Flips an image at random, also in a dataset without labels."""
    flipped = tf.image.random_flip_left_right(image)
    return (flipped, *label) if label else flipped


def by_python(image: Any, *label: Any) -> Any:
    """Passes an image through Python, as a function that loads files does."""
    loaded = tf.numpy_function(lambda array: array, [image], tf.float32)
    return (loaded, *label) if label else loaded


def random_loop(image: Any, label: Any) -> Any:
    (total,) = tf.while_loop(
        lambda total: total < 3,
        lambda total: [total + tf.random.uniform([])],
        [0.0],
    )
    return total, label


def named(image: Any, label: Any) -> Any:
    return {"clean": image, "noisy": image + tf.random.normal([])}, label


def generator() -> Any:
    return tf.data.Dataset.from_generator(
        lambda: iter([(1.0, 2.0)]),
        output_signature=(tf.TensorSpec([]), tf.TensorSpec([])),
    )


# Datasets, and the origins of the tensors of their elements.
CASES = """
pairs().shuffle(8).batch(2).repeat()                                    | EQUAL EQUAL
pairs().map(flip).batch(2).prefetch(1)                                  | RANDOM EQUAL
pairs().map(flip, num_parallel_calls=2).batch(2)                        | RANDOM EQUAL
pairs().map(by_python).batch(2)                                         | PYTHON EQUAL
pairs().map(by_python).map(flip)                                        | RANDOM EQUAL
tf.data.Dataset.zip((images().map(flip), pairs()))                      | RANDOM EQUAL EQUAL
generator().batch(2)                                                    | PYTHON PYTHON
tf.data.Dataset.range(2).interleave(lambda _: pairs())                  | EQUAL EQUAL
tf.data.Dataset.range(2).interleave(lambda _: pairs().map(by_python))   | PYTHON PYTHON
pairs().map(named).cache()                                              | EQUAL RANDOM EQUAL
pairs().map(random_loop)                                                | RANDOM EQUAL
pairs().batch(2).map(lambda x, y: (tf.map_fn(tf.random.shuffle, x), y)) | RANDOM EQUAL
tf.data.Dataset.range(8).window(2).flat_map(lambda rows: rows.batch(2)) | EQUAL
"""


@pytest.mark.parametrize("case", CASES.strip().splitlines())
def test_origins_follow_the_operations(case: str) -> None:
    dataset, _, expected = case.rpartition(" | ")
    found = find_origins(eval(dataset))
    assert [origin.name for origin in found] == expected.split()


def test_a_function_that_cannot_be_read_may_call_python(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = "slurm_resolver.tf.partition.inlining._find_function"
    monkeypatch.setattr(functions, lambda *_: None)
    found = find_origins(pairs().map(random_loop))
    assert [origin.name for origin in found] == ["PYTHON", "EQUAL"]
