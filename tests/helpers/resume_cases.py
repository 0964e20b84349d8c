"""Trains small models in many ways, once without a break, and once interrupted and resumed.

The program prints both results of each case as JSON. Exceptions interrupt the second training:
once up to four steps after its last save, and once between two epochs, before the end of the
first epoch is saved.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from kinds import Action, Fields

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import keras
import numpy as np
import tensorflow as tf
from labelled_rows import BreakOff, BrokenOffError, raise_error

import slurm_resolver as sr

ROWS = 60
COLUMNS = 4
BATCH = 6
_random = np.random.default_rng(7)
X = _random.normal(size=(ROWS, COLUMNS)).astype("float32")
Y = X.sum(axis=1, keepdims=True) + _random.normal(size=(ROWS, 1)).astype("float32")
TERMINATION = sr.termination_config(None, requeue=None)

strategy: Any = None
CASES: dict[str, Action] = {}


def case(function: Action) -> Action:
    """Registers a function that returns a new model and the arguments of `fit`."""
    CASES[function.__name__] = function
    return function


class Silent(keras.Model):  # type: ignore[misc]
    """Its step returns only some of its metrics."""

    def train_step(self, data: Any) -> Fields:
        return {"loss": super().train_step(data)["loss"]}


def perceptron(*layers: Any, kind: Any = keras.Model, **compiled: Any) -> Any:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        inputs = keras.Input((COLUMNS,))
        hidden = keras.layers.Dense(8, activation="relu")(inputs)
        for layer in layers:
            hidden = layer()(hidden)
        model = kind(inputs, keras.layers.Dense(1, dtype="float32")(hidden))
        model.compile(
            **{
                "optimizer": keras.optimizers.Adam(0.01),
                "loss": "mse",
                "metrics": ["mae"],
                **compiled,
            }
        )
    return model


def dataset(rows: int = ROWS) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(BATCH)


def endless() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(ROWS, seed=1).repeat().batch(BATCH)


@case
def one_iterator_for_all() -> Fields:
    return {
        "model": perceptron(),
        "x": endless(),
        "steps_per_epoch": 7,
    }


@case
def data_that_ends_within_an_epoch() -> Fields:
    return {
        "model": perceptron(),
        "x": dataset(),
        "steps_per_epoch": 4,
        "epochs": 5,
    }


@case
def shuffled_anew() -> Fields:
    return {
        "model": perceptron(),
        "x": tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(ROWS, seed=1).batch(BATCH),
    }


@case
def arrays() -> Fields:
    return {
        "model": perceptron(),
        "x": X,
        "y": Y,
        "batch_size": BATCH,
    }


@case
def unknown_cardinality() -> Fields:
    """Saves every fourth of eight steps, when it is still unknown whether more steps follow."""
    return {
        "model": perceptron(),
        "x": dataset(rows=48).unbatch().filter(lambda x, _: x[0] < 100.0).batch(BATCH),
    }


@case
def steps_per_execution() -> Fields:
    return {"model": perceptron(steps_per_execution=3), "x": dataset(rows=50)}


@case
def dropout_and_normalization() -> Fields:
    return {
        "model": perceptron(lambda: keras.layers.Dropout(0.5), keras.layers.BatchNormalization),
        "x": dataset(),
    }


@case
def state_of_optimizers() -> Fields:
    """The optimizer has a loss scale, averaged weights and a learning-rate schedule."""
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.9)
    scaled = keras.mixed_precision.LossScaleOptimizer
    return {
        "model": perceptron(
            optimizer=scaled(
                keras.optimizers.Adam(
                    rate,
                    use_ema=True,
                    ema_momentum=0.9,
                ),
                initial_scale=2.0,
                dynamic_growth_steps=4,
            )
        ),
        "x": dataset(),
    }


@case
def early_stopping() -> Fields:
    """EarlyStopping ends the training because the rate is too high. A callback also lowers it."""
    return {
        "model": perceptron(optimizer=keras.optimizers.SGD(0.25)),
        "x": dataset(),
        "validation_data": dataset(rows=30),
        "callbacks": [
            keras.callbacks.EarlyStopping(
                "val_loss",
                patience=2,
                restore_best_weights=True,
            ),
            keras.callbacks.ReduceLROnPlateau(
                "loss",
                patience=1,
                min_delta=0.2,
            ),
        ],
        "epochs": 12,
    }


@case
def learning_rate_scheduler() -> Fields:
    """The scheduler halves the rate at the start of each epoch, including a resumed one."""
    return {
        "model": perceptron(),
        "x": dataset(),
        "callbacks": [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)],
    }


@case
def step_of_its_own() -> Fields:
    """It resumes before the last steps of an epoch."""
    return {"model": perceptron(kind=Silent), "x": dataset(rows=54)}


@case
def stop_at_the_beginning() -> Fields:
    """Keras trains one step of an epoch that a callback stops as it begins."""

    class Stops(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = epoch == 1

    return {
        "model": perceptron(),
        "x": dataset(),
        "callbacks": [Stops()],
    }


@case
def not_built() -> Fields:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return {"model": model, "x": dataset()}


@case
def generator() -> Fields:
    """This case is last, because TensorFlow may hang when it abandons a running generator."""

    def batches() -> Iterator[Any]:
        while True:
            for at in range(0, ROWS, BATCH):
                yield X[at : at + BATCH], Y[at : at + BATCH]

    return {
        "model": perceptron(),
        "x": batches(),
        "steps_per_epoch": 7,
    }


def train(make: Action, folder: str, breaks: list[tuple[int, int]]) -> Fields:
    """Interrupts the training at each of these steps in turn, and then trains to the end."""
    for after in [*breaks, (99, 0)]:
        how = {
            "epochs": 3,
            "callbacks": [],
            "verbose": 0,
            **make(),
        }
        model = how.pop("model")
        how["callbacks"] = [
            BreakOff(after, raise_error),
            *how["callbacks"],
            sr.BackupAndResume(folder, TERMINATION, save_every=4),
        ]
        try:
            history = model.fit(**how)
        except BrokenOffError:
            continue
    weights = [*model.get_weights(), *map(np.asarray, model.optimizer.variables)]
    digest = hashlib.sha256(b"".join(value.tobytes() for value in weights)).hexdigest()
    return {
        "weights": digest,
        "history": history.history,
        "epochs": history.epoch,
        "iterations": int(tf.convert_to_tensor(model.optimizer.iterations)),
    }


def outcomes(name: str) -> dict[str, Fields]:
    found = {}
    for kind, breaks in {"whole": [], "resumed": [(1, 3), (2, 0)]}.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                found[kind] = train(CASES[name], folder, breaks)
            except Exception as error:
                found[kind] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    return found


def main() -> None:
    global strategy
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="get_strategy")
    parser.add_argument(
        "cases",
        nargs="*",
        default=list(CASES),
    )
    args = parser.parse_args()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    if args.strategy == "get_strategy":
        strategy = tf.distribute.get_strategy()
    else:
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    print(json.dumps({name: outcomes(name) for name in args.cases}, default=float))


if __name__ == "__main__":
    main()
