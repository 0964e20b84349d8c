"""Models that the strategy cannot train, such as those built outside its scope."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras_bad_fit.common import (
    WAYS,
    Centered,
    X,
    Y,
    in_scope,
    model,
    of_kind,
    trained,
    way,
)


@way
def built_outside() -> str:
    built = in_scope(lambda: keras.Sequential([keras.layers.Dense(1)]))
    built.compile("adam", "mse")
    built.build((None, 6))
    return trained(built)


@way
def own_optimizer_outside() -> str:
    built = of_kind(Centered)
    built.own_optimizer = keras.optimizers.Adam()
    return trained(built)


class OwnFunction(keras.Model):  # type: ignore[misc]
    def make_train_function(self, force: bool = False) -> Any:
        def step(iterator: Any) -> Any:
            return self.train_step(next(iterator))

        self.train_function = tf.function(step)
        return self.train_function


class WrappedFunction(keras.Model):  # type: ignore[misc]
    train_function: Any = None
    calls = 0

    def make_train_function(self, force: bool = False) -> Any:
        super().make_train_function(force)
        take_step = self.train_function

        def counted(iterator: Any) -> Any:
            self.calls += 1
            return take_step(iterator)

        self.train_function = counted
        return counted


WAYS.update(
    {
        "model_outside": lambda: trained(model()),
        "batch_outside": lambda: model().train_on_batch(X, Y),
        "optimizer_outside": lambda: trained(in_scope(model, keras.optimizers.Adam())),
        "own_function": lambda: trained(of_kind(OwnFunction)),
        "own_function_on_batch": lambda: of_kind(OwnFunction).train_on_batch(X, Y),
    }
)


@way
def assigned_function() -> None:
    built = of_kind(keras.Model)
    built.train_function = lambda iterator: built.train_step(next(iterator))
    trained(built)


@way
def wrapped_function() -> str:
    built = of_kind(WrappedFunction)
    return f"{trained(built)} {built.calls} steps"


@way
def metric_in_xla() -> str:
    class Watching(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.mean = keras.metrics.Mean(name="watched")

        @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
        def call(self, x: Any) -> Any:
            self.mean.update_state(x)
            return x

    def watched(inputs: Any, outputs: Any) -> Any:
        return keras.Model(inputs, Watching()(outputs))

    return trained(of_kind(watched))
