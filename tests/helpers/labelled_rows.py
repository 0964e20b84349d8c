"""Rows with labels that a small Keras model can learn, and a callback that ends its training."""

from __future__ import annotations

from typing import Any, Callable

import keras
import numpy as np
import tensorflow as tf

ROWS = 96
_random = np.random.default_rng(5)
X = _random.normal(size=(ROWS, 6)).astype("float32")
Y = (X @ _random.normal(size=(6, 3))).argmax(axis=1).astype("int32")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def data() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(24)


class BrokenOffError(Exception):
    """A training was broken off."""


def raise_error() -> None:
    """Breaks a training off, for `BreakOff`."""
    raise BrokenOffError


class BreakOff(keras.callbacks.Callback):  # type: ignore[misc]
    """Calls a function when this step of this epoch begins, and when a later step does."""

    def __init__(self, first: tuple[int, int], end: Callable[[], None]) -> None:
        super().__init__()
        self._first = first
        self._end = end
        self._epoch = -1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self._epoch, batch) >= self._first:
            self._end()
