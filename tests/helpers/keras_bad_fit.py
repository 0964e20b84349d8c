"""Calls Keras 3's `fit` in two workers in ways that cannot be one training.

Each worker writes its errors as JSON to TASK_OUTPUT/<index>. With "failing N", worker N raises an
exception in a callback. Worker 0 evaluates alone after `fit` with "alone after", and in a callback
with "alone within". With "alone batch", it calls `train_on_batch` alone after `fit`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import slurm_resolver as sr

X = np.ones((96, 6), "float32")
Y = np.ones((96, 1), "float32")
Way = Callable[[Any, int], object]
WAYS: Dict[str, Way] = {}


def way(function: Way) -> Way:
    WAYS[function.__name__] = function
    return function


def data(rows: int = 96) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(24)


def model(optimizer: Any = "sgd", **compiled: Any) -> Any:
    built = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    built.compile(optimizer, loss="mse", **compiled)
    return built


@way
def model_outside(strategy: Any, worker: int) -> None:
    model().fit(data(), verbose=0)


@way
def compiled_outside(strategy: Any, worker: int) -> str:
    with strategy.scope():
        built = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    built.compile("adam", "mse")
    built.fit(data(), verbose=0)
    return "trained"


@way
def optimizer_outside(strategy: Any, worker: int) -> None:
    optimizer = keras.optimizers.Adam()
    with strategy.scope():
        built = model(optimizer)
    built.fit(data(), verbose=0)


def fit(strategy: Any, metrics: int = 1, **how: Any) -> None:
    with strategy.scope():
        built = model(metrics=["mae", "mape"][:metrics])
    built.fit(**{"x": data(), "verbose": 0, **how})


@way
def other_metrics(strategy: Any, worker: int) -> None:
    fit(strategy, metrics=1 + worker)


@way
def other_data(strategy: Any, worker: int) -> None:
    fit(strategy, x=data(96 - 48 * worker))


@way
def other_rows(strategy: Any, worker: int) -> None:
    rows = np.random.default_rng(worker).normal(size=(96, 6)).astype("float32")
    fit(strategy, x=rows, y=Y, batch_size=24, shuffle=False)


def own(rows: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return rows.with_options(options)


@way
def own_data(strategy: Any, worker: int) -> None:
    fit(strategy, x=own(data(96 - 48 * worker)))


@way
def stateful(strategy: Any, worker: int) -> None:
    with strategy.scope():
        layers = [keras.Input(batch_shape=(24, 6, 1)), keras.layers.LSTM(1, stateful=True)]
        built = keras.Sequential(layers)
        built.compile("sgd", loss="mse")
    built.fit(X[:24, :, None], Y[:24], verbose=0)


@way
def other_calls(strategy: Any, worker: int) -> None:
    with strategy.scope():
        built = model()
    (built.predict if worker else built.evaluate)(data(), verbose=0)


@way
def unknown_option(strategy: Any, worker: int) -> None:
    sr.MultiWorkerMirroredStrategy(custom_losses="sum")  # type: ignore[arg-type]


@way
def all_raise(strategy: Any, worker: int) -> None:
    def fails(epoch: int, logs: Any) -> None:
        raise ValueError(f"in worker {worker}")

    fit(strategy, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=fails)])


@way
def alone_on_purpose(strategy: Any, worker: int) -> str:
    """Trains in another strategy and evaluates without one; neither is a mistake."""
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        helper = model()
    helper.fit(data(96 - 48 * worker), verbose=0)
    model().evaluate(data(), verbose=0)
    return "trained"


@way
def own_data_of_one_size(strategy: Any, worker: int) -> str:
    fit(strategy, x=own(data(96 - 48 * worker).repeat()), steps_per_epoch=3)
    return "trained"


class Summed(keras.Model):  # type: ignore[misc]
    def train_step(self, batch: Any) -> Dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((self(batch[0]) - batch[1]) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


@way
def own_data_summed(strategy: Any, worker: int) -> None:
    with strategy.scope():
        inputs = keras.Input((6,))
        summed = Summed(inputs, keras.layers.Dense(1)(inputs))
        summed.compile("sgd")
    summed.fit(own(data()), verbose=0)


def main() -> None:
    kind, name = (sys.argv[1:] or ["all", ""])[:2]
    strategy = sr.MultiWorkerMirroredStrategy()
    worker = strategy.cluster_resolver.task_id
    if kind == "failing":

        def fails(epoch: int, logs: Any) -> None:
            if worker == int(name):
                raise RuntimeError("of the callback")

        callback = keras.callbacks.LambdaCallback(on_epoch_end=fails)
        fit(strategy, epochs=2, callbacks=[callback])
    if kind == "alone":
        with strategy.scope():
            built = model()

        def evaluates(*_: Any) -> None:
            if worker == 0:
                built.evaluate(X, Y, verbose=0)

        callback = keras.callbacks.LambdaCallback(on_epoch_end=evaluates)
        built.fit(data(), epochs=2, verbose=0, callbacks=[callback] if name == "within" else [])
        if name == "batch" and worker == 0:
            built.train_on_batch(X, Y)
        elif name != "batch":
            evaluates()
        return
    found: Dict[str, object] = {}
    for name, function in WAYS.items():
        try:
            found[name] = function(strategy, worker)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    Path(os.environ["TASK_OUTPUT"], str(worker)).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
