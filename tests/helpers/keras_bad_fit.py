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
from typing import Any, Callable

from kinds import Action, Fields

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

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
    built = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    built.compile(optimizer, loss="mse", **compiled)
    return built


def in_scope(make: Callable[..., Any] = model, *given: Any, **how: Any) -> Any:
    with STRATEGY.scope():
        return make(*given, **how)


def trained(built: Any, **how: Any) -> str:
    built.fit(**{"x": data(), "verbose": 0, **how})
    return "trained"


@way
def model_outside() -> None:
    trained(model())


@way
def compiled_outside() -> str:
    built = in_scope(lambda: keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)]))
    built.compile("adam", "mse")
    return trained(built)


@way
def optimizer_outside() -> None:
    trained(in_scope(model, keras.optimizers.Adam()))


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
def own_optimizer_outside() -> None:
    built = in_scope(of_one_layer, TwoSteps)
    built.compile(keras.optimizers.Adam())
    trained(built)


@way
def batch_outside() -> None:
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


def of_one_layer(kind: Any) -> Any:
    inputs = keras.Input((6,))
    return kind(inputs, keras.layers.Dense(1)(inputs))


def of_kind(kind: Any) -> Any:
    with STRATEGY.scope():
        built = of_one_layer(kind)
        built.compile("sgd", "mse")
    return built


@way
def own_function() -> None:
    trained(of_kind(OwnFunction))


@way
def own_function_on_batch() -> None:
    of_kind(OwnFunction).train_on_batch(X, Y)


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
def metric_in_xla() -> None:
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

    trained(of_kind(watched))


def fit(metrics: int = 1, **how: Any) -> str:
    return trained(in_scope(metrics=["mae", "mape"][:metrics]), **how)


@way
def other_metrics() -> None:
    fit(metrics=1 + WORKER)


@way
def other_data() -> None:
    fit(x=data(96 - 48 * WORKER))


@way
def other_rows() -> None:
    fit(
        x=np.random.default_rng(WORKER).normal(size=(96, 6)).astype("float32"),
        y=Y,
        batch_size=24,
        shuffle=False,
    )


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
def other_rate() -> None:
    fit(
        epochs=2,
        callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))]
        if WORKER
        else [],
    )


@way
def other_weights() -> None:
    fit(callbacks=[Does(lambda model: model.layers[0].bias.assign([5.0]))] if WORKER else [])


@way
def other_weights_before() -> None:
    built = in_scope()
    if WORKER:
        built.layers[0].bias.assign([5.0])
    built.evaluate(data(), verbose=0)


@way
def other_momentum() -> None:
    trained(in_scope(lambda: model(keras.optimizers.SGD(0.1, momentum=0.9 * WORKER))))


@way
def restored_in_one() -> None:
    fit(callbacks=[sr.BackupAndResume("unused")] if WORKER else [])


@way
def float8() -> None:
    built = in_scope(model)
    built.quantize("float8")
    built.compile("sgd", "mse")
    trained(built)


NUMBERS = np.arange(96, dtype="float32")[:, None]


@way
def other_order_in_predict() -> None:
    rows = np.repeat(NUMBERS, 6, axis=1)
    in_scope().predict(rows[::-1] if WORKER else rows, batch_size=24, verbose=0)


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
def other_order_of_python() -> None:
    fit(x=Rows(WORKER))


@way
def noise_of_its_own() -> str:
    """The targets show that the rows are the same."""
    return fit(x=Rows(0))


@way
def stops_after_an_epoch() -> int:
    """One worker has a callback, and the other gives none."""
    return len(
        in_scope()
        .fit(data(), epochs=3, verbose=0, callbacks=[Does(stop)] if WORKER else None)
        .history["loss"]
    )


def own(rows: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return rows.with_options(options)


@way
def own_data() -> None:
    fit(x=own(data(96 - 48 * WORKER)))


@way
def stateful() -> None:
    with STRATEGY.scope():
        built = keras.Sequential(
            [keras.Input(batch_shape=(24, 6, 1)), keras.layers.LSTM(1, stateful=True)]
        )
        built.compile("sgd", loss="mse")
    built.fit(X[:24, :, None], Y[:24], verbose=0)


@way
def other_calls() -> None:
    built = in_scope()
    (built.predict if WORKER else built.evaluate)(data(), verbose=0)


@way
def unknown_option() -> None:
    sr.MultiWorkerMirroredStrategy(custom_losses="sum")  # type: ignore[arg-type]


@way
def all_raise() -> None:
    def fails(model: Any) -> None:
        raise ValueError(f"in worker {WORKER}")

    fit(callbacks=[Does(fails)])


@way
def alone_on_purpose() -> str:
    """Trains in another strategy and evaluates without one; neither is a mistake."""
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        helper = model()
    model().evaluate(data(), verbose=0)
    return trained(helper, x=data(96 - 48 * WORKER))


@way
def own_data_of_one_size() -> str:
    return fit(x=own(data(96 - 48 * WORKER).repeat()), steps_per_epoch=3)


class Centered(keras.Model):  # type: ignore[misc]
    def train_step(self, batch: Any) -> Fields:
        with tf.GradientTape() as tape:
            errors = self(batch[0]) - batch[1]
            loss = tf.reduce_mean((errors - tf.reduce_mean(errors)) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


@way
def own_data_compared() -> None:
    trained(of_kind(Centered), x=own(data()))


def main() -> None:
    kind, name = (sys.argv[1:] or ["all", ""])[:2]
    if kind == "failing":

        def fails(model: Any) -> None:
            if int(name) == WORKER:
                raise RuntimeError("of the callback")

        fit(epochs=2, callbacks=[Does(fails)])
    if kind == "stopping":
        fit(callbacks=[Does(stop, step=1)] if WORKER else [])
    if kind == "alone":
        built = in_scope()
        if name == "scope" and WORKER == 0:
            in_scope()

        def evaluates(model: Any) -> None:
            if WORKER == 0:
                model.evaluate(X, Y, verbose=0)

        trained(built, epochs=2, callbacks=[Does(evaluates)] if name == "within" else [])
        if name == "batch" and WORKER == 0:
            built.train_on_batch(X, Y)
        elif name != "batch":
            evaluates(built)
        return
    found: dict[str, object] = {}
    for name, function in WAYS.items():
        try:
            found[name] = function()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    Path(os.environ["TASK_OUTPUT"], str(WORKER)).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
