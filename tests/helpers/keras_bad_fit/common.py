"""What the calls of keras_bad_fit share: the strategy, the data, and models to train."""

from __future__ import annotations

from typing import Any, Callable

import keras
import numpy as np
import tensorflow as tf
from kinds import Action, Fields

import slurm_resolver as sr

X = np.ones((96, 6), "float32")
Y = np.ones((96, 1), "float32")
WAYS: dict[str, Action] = {}
STRATEGY: Any = sr.MultiWorkerMirroredStrategy()
WORKER: int = STRATEGY.cluster_resolver.task_id


def way(function: Action) -> Action:
    WAYS[function.__name__] = function
    return function


def data(rows: int = 96) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(24)


def model(optimizer: Any = "sgd", **compiled: Any) -> Any:
    built = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(1),
        ]
    )
    built.compile(
        optimizer,
        loss="mse",
        **compiled,
    )
    return built


def in_scope(make: Callable[..., Any] = model, *given: Any, **how: Any) -> Any:
    with STRATEGY.scope():
        return make(*given, **how)


def trained(built: Any, **how: Any) -> str:
    how.setdefault("x", data())
    built.fit(
        verbose=0,
        **how,
    )
    return "trained"


def of_one_layer(kind: Any) -> Any:
    inputs = keras.Input((6,))
    return kind(inputs, keras.layers.Dense(1)(inputs))


def of_kind(kind: Any) -> Any:
    with STRATEGY.scope():
        built = of_one_layer(kind)
        built.compile("sgd", "mse")
    return built


def fit(metrics: int = 1, **how: Any) -> str:
    return trained(
        in_scope(metrics=["mae", "mape"][:metrics]),
        **how,
    )


def fit_with(callback: Any, worker: int = 1, **how: Any) -> str:
    """Trains with a callback in one worker."""
    return fit(
        callbacks=[callback] if worker == WORKER else [],
        **how,
    )


class Centered(keras.Model):  # type: ignore[misc]
    """Takes its steps itself, as a GAN does, and with an optimizer of its own if it has one."""

    own_optimizer: Any = None

    def train_step(self, batch: Any) -> Fields:
        with tf.GradientTape() as tape:
            errors = self(batch[0]) - batch[1]
            loss = tf.reduce_mean((errors - tf.reduce_mean(errors)) ** 2)
        weights = self.trainable_variables
        optimizer = self.own_optimizer or self.optimizer
        optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


class Does(keras.callbacks.Callback):  # type: ignore[misc]
    """Calls a function with the model at the end of an epoch, or of the step with this number."""

    def __init__(self, function: Callable[[Any], object], step: int = -1) -> None:
        super().__init__()
        self.function = function
        self.step = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == self.step:
            self.function(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.step < 0:
            self.function(self.model)


def stop(model: Any) -> None:
    model.stop_training = True
