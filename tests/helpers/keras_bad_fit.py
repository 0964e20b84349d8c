"""Calls Keras 3's `fit` in two workers in ways that cannot be one training.

Each worker writes its errors as JSON to TASK_OUTPUT/<index>. With "failing N", worker N raises an
exception in a callback. Worker 0 evaluates alone after `fit` with "alone after", and in a callback
with "alone within". With "alone batch", it calls `train_on_batch` alone after `fit`. With
"stopping within", worker 1 stops training in step 2.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict

from kinds import Fields

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


class TwoSteps(keras.Model):  # type: ignore[misc]
    """Takes its steps with optimizers of its own, as a GAN does."""

    def compile(self, own_optimizer: Any) -> None:
        super().compile()
        self.own_optimizer = own_optimizer

    def train_step(self, batch: Any) -> Fields:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(batch[0]) - batch[1]) ** 2)
        weights = self.trainable_variables
        self.own_optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


@way
def own_optimizer_outside(strategy: Any, worker: int) -> None:
    with strategy.scope():
        inputs = keras.Input((6,))
        built = TwoSteps(inputs, keras.layers.Dense(1)(inputs))
    built.compile(keras.optimizers.Adam())
    built.fit(data(), verbose=0)


@way
def batch_outside(strategy: Any, worker: int) -> None:
    model().train_on_batch(X, Y)


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


def of_kind(strategy: Any, kind: Any) -> Any:
    with strategy.scope():
        inputs = keras.Input((6,))
        built = kind(inputs, keras.layers.Dense(1)(inputs))
        built.compile("sgd", "mse")
    return built


@way
def own_function(strategy: Any, worker: int) -> None:
    of_kind(strategy, OwnFunction).fit(data(), verbose=0)


@way
def own_function_on_batch(strategy: Any, worker: int) -> None:
    of_kind(strategy, OwnFunction).train_on_batch(X, Y)


@way
def assigned_function(strategy: Any, worker: int) -> None:
    built = of_kind(strategy, keras.Model)
    built.train_function = lambda iterator: built.train_step(next(iterator))
    built.fit(data(), verbose=0)


@way
def wrapped_function(strategy: Any, worker: int) -> str:
    built = of_kind(strategy, WrappedFunction)
    built.fit(data(), verbose=0)
    return f"trained {built.calls} steps"


@way
def metric_in_xla(strategy: Any, worker: int) -> None:
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

    of_kind(strategy, watched).fit(data(), verbose=0)


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


@way
def other_rate(strategy: Any, worker: int) -> None:
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))
    fit(strategy, epochs=2, callbacks=[scheduler] if worker else [])


@way
def other_weights(strategy: Any, worker: int) -> None:
    callback = Does(lambda model: model.layers[0].bias.assign([5.0]))
    fit(strategy, callbacks=[callback] if worker else [])


@way
def other_weights_before(strategy: Any, worker: int) -> None:
    with strategy.scope():
        built = model()
    if worker:
        built.layers[0].bias.assign([5.0])
    built.evaluate(data(), verbose=0)


@way
def other_momentum(strategy: Any, worker: int) -> None:
    with strategy.scope():
        built = model(keras.optimizers.SGD(0.1, momentum=0.9 * worker))
    built.fit(data(), verbose=0)


@way
def restored_in_one(strategy: Any, worker: int) -> None:
    fit(strategy, callbacks=[sr.BackupAndResume("unused")] if worker else [])


@way
def float8(strategy: Any, worker: int) -> None:
    with strategy.scope():
        built = model()
        built.quantize("float8")
        built.compile("sgd", "mse")
    built.fit(data(), verbose=0)


NUMBERS = np.arange(96, dtype="float32")[:, None]


@way
def other_order_in_predict(strategy: Any, worker: int) -> None:
    rows = np.repeat(NUMBERS, 6, axis=1)
    with strategy.scope():
        built = model()
    built.predict(rows[::-1] if worker else rows, batch_size=24, verbose=0)


class Rows(keras.utils.PyDataset):  # type: ignore[misc]
    """Rows with noise that each worker draws for itself, and their numbers as targets."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self.first = 24 * worker

    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: int) -> Any:
        start = self.first + 24 * place
        noise = np.random.default_rng().normal(size=(24, 6)).astype("float32")
        return noise, NUMBERS[start : start + 24] / 96


@way
def other_order_of_python(strategy: Any, worker: int) -> None:
    fit(strategy, x=Rows(worker))


@way
def noise_of_its_own(strategy: Any, worker: int) -> str:
    """The targets show that the rows are the same."""
    fit(strategy, x=Rows(0))
    return "trained"


@way
def stops_after_an_epoch(strategy: Any, worker: int) -> int:
    with strategy.scope():
        built = model()
    history = built.fit(data(), epochs=3, verbose=0, callbacks=[Does(stop)] if worker else [])
    return len(history.history["loss"])


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
    def train_step(self, batch: Any) -> Fields:
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
    if kind == "stopping":
        fit(strategy, callbacks=[Does(stop, step=1)] if worker else [])
    if kind == "alone":
        with strategy.scope():
            built = model()
            if name == "scope" and worker == 0:
                model()

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
