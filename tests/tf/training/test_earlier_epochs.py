"""The data of a resumed fit are where the earlier epochs have left them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf
from keras_3 import keras
from keras_marks import KERAS_3

from slurm_resolver.tf import private_names
from slurm_resolver.tf.training.dataset_graph import Findings
from slurm_resolver.tf.training.earlier_epochs import findings_of, read_earlier

pytestmark = KERAS_3

ROWS = np.arange(8, dtype="float32").reshape(4, 2)
DATASET = tf.data.Dataset.from_tensor_slices((ROWS, ROWS)).batch(2)


def generated() -> Iterator[Any]:
    yield ROWS, ROWS


def epochs_of(x: Any, y: Any = None) -> Any:
    """Returns what makes the iterators of `fit`."""
    kind: Any = private_names.READ_DATA.owner()
    return kind(x=x, y=y, distribute_strategy=tf.distribute.get_strategy())


def findings(x: Any, y: Any = None) -> Findings:
    fit = SimpleNamespace(x=x, y=y, shuffle=False)
    return findings_of(epochs_of(x, y), fit)


def test_what_depends_on_earlier_epochs_is_drawn_again() -> None:
    assert not findings(ROWS, ROWS).again
    assert not findings(DATASET.shuffle(2, seed=1)).again
    assert findings(DATASET.shuffle(2, seed=1).cache()).again
    assert findings(generated()).again


def test_other_numbers_are_another_content() -> None:
    contents = [findings(x, ROWS).content for x in (ROWS, ROWS, ROWS + 1)]
    assert contents[0] == contents[1]
    assert contents[0] != contents[2]


def test_arrays_without_a_length_are_taken() -> None:
    for x in (tf.sparse.from_dense(ROWS), tf.RaggedTensor.from_tensor(ROWS)):
        assert not findings(x, ROWS).again


def test_the_next_epoch_reads_what_it_would_have_read() -> None:
    started = itertools.count()

    def generate() -> Iterator[Any]:
        epoch = next(started)
        for _ in range(4):
            yield [epoch], [0]

    signature = (tf.TensorSpec([1]), tf.TensorSpec([1]))
    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    of_known_size = dataset.apply(tf.data.experimental.assert_cardinality(4))
    data = epochs_of(of_known_size.batch(2))
    data.reset()
    fit = SimpleNamespace(initial_epoch=1, validation_data=None)
    model = keras.Sequential()
    model._eval_epoch_iterator = None  # as `fit` does
    read_earlier(model, fit, data, findings(dataset).again, (3, 0), steps=2, says=False)
    batch, _ = next(next(iter(data.enumerate_epoch()))[-1])
    assert batch.numpy().ravel().tolist() == [2.0, 2.0]
