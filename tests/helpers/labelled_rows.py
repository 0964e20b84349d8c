"""Rows with labels that a small Keras model can learn, and a callback that interrupts it."""

from __future__ import annotations

import time
from typing import Any

import keras
import tensorflow as tf
from keras_programs import common
from kinds import Action

ROWS = 96
X = common.X[:ROWS]
Y = common.Y[:ROWS]


def data() -> tf.data.Dataset:
    return common.data(rows=ROWS, batch=24)


class BrokenOffError(Exception):
    """A training was broken off."""


def raise_error() -> None:
    """Breaks a training off, for `Interrupt`."""
    raise BrokenOffError


class Interrupt(keras.callbacks.Callback):  # type: ignore[misc]
    """Calls a function after a step, counted over all epochs."""

    def __init__(self, after: int, call: Action) -> None:
        super().__init__()
        self.left = after
        self.call = call

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            self.call()
        elif self.left < 0:  # so that all ranks agree in time
            time.sleep(0.4)
