"""Trains for two epochs of 20 steps, in which worker 1 is slow in the way that its argument names.

The last argument may be "loop", for a ResumableLoop, or "twice", for two calls of `fit`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import slurm_resolver as sr

SLOW = sys.argv[1]
IS_SLOW = os.environ["SLURM_PROCID"] == "1"
STEPS = 20
BATCH = 8


def be_slow(kind: str) -> None:
    if kind == SLOW and IS_SLOW:
        time.sleep(0.05)


def computed(rows: Any) -> Any:
    be_slow("computing")
    return rows


class Computing(keras.layers.Layer):  # type: ignore[misc]
    """Computes something in Python."""

    def call(self, inputs: Any) -> Any:
        outputs = tf.numpy_function(computed, [inputs], inputs.dtype)
        return tf.ensure_shape(outputs, inputs.shape)


class Callback(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        be_slow("between steps")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if SLOW == "exit":
            sys.exit(75)


def rows() -> Iterator[Any]:
    for number in range(BATCH * STEPS):
        if number % BATCH == 0:
            be_slow("waiting for data")
        yield np.ones(4, "float32"), np.ones(1, "float32")


def data() -> Any:
    signature = (tf.TensorSpec((4,)), tf.TensorSpec((1,)))
    return tf.data.Dataset.from_generator(rows, output_signature=signature).batch(BATCH)


def fit(strategy: Any) -> None:
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Computing(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    for _ in range(2 if "twice" in sys.argv else 1):
        model.fit(data(), epochs=2, verbose=0, callbacks=[Callback()], validation_data=data())


def loop(strategy: Any) -> None:
    training = sr.ResumableLoop("checkpoints", strategy)
    for _ in training.epochs(2):
        for _ in training.batches(data()):
            pass


if __name__ == "__main__":
    made = sr.MultiWorkerMirroredStrategy()
    loop(made) if "loop" in sys.argv else fit(made)
