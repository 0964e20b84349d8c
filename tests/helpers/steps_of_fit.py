"""Trains a model on batches of several kinds, alone or in workers, and prints what it gets.

The first argument says what is broken in the partition of the steps: "nothing", a "rule" or
"writing" that fails, or a rule that is "wrong". The others are kinds of data or models.

REPLICAS is the number of replicas of each worker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_programs.common import ready
from tensorflow.python.distribute.collective_all_reduce_strategy import (
    CollectiveAllReduceExtended,
)

import slurm_resolver as sr
from slurm_resolver.tf.partition.creation import create
from slurm_resolver.tf.partition.emission import Emission
from slurm_resolver.tf.partition.table import TABLE

ROWS = 13
BATCH = 6  # so that the last batch has one row
random = np.random.default_rng(0)
SHAPE = (8, 8, 3)
X = random.normal(size=(ROWS, *SHAPE)).astype("float32")
Y = random.integers(3, size=ROWS)
SIGNATURE = (
    tf.TensorSpec([None, *SHAPE]),
    tf.TensorSpec([None], tf.int64),
)


def generated() -> Iterator[Any]:
    """Yields the batches of a Python generator."""
    for first in range(0, ROWS, BATCH):
        rows = slice(first, first + BATCH)
        yield X[rows], Y[rows]


def data(kind: str) -> Any:
    """Returns a dataset.

    Args:
        kind: "generator" and "unknown" have batches of unknown sizes; others have known ones.
    """
    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    if kind == "unknown":
        rows = rows.filter(lambda x, y: True)
    if kind == "generator":
        return tf.data.Dataset.from_generator(
            generated,
            output_signature=SIGNATURE,
        )
    return rows.batch(BATCH)


def fail(*_: Any) -> Any:
    """Stands for a rule, or for what writes an operation, with a fault."""
    raise ZeroDivisionError("as the test wants it")


def doubled(split: Any) -> Any:
    """Returns a wrong rule: the results are twice as large."""

    def rule(op: Any) -> Any:
        found = split(op)

        def make(emission: Any, inputs: list[Any]) -> list[Any]:
            outputs = create(op.traced, inputs)
            return [2.0 * output for output in outputs]

        return found._replace(make=make)

    return rule


@tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
def activation(tensor: Any) -> Any:
    """Is compiled by XLA in one process."""
    return tensor * tf.tanh(tensor)


def teacher() -> Any:
    """Returns a model that is made outside the scope; in training, it draws random numbers."""
    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dropout(0.5),
        ]
    )
    model.trainable = False
    return model


def model_of(kind: str, outside: Any) -> Any:
    """Returns a model.

    Args:
        kind: a "compiled" one has a function that XLA compiles; that of a "teacher" uses another
            model.
        outside: that other model.
    """
    inputs = keras.Input(SHAPE)
    hidden = inputs
    for layer in (
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.BatchNormalization(synchronized=True),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(3),
    ):
        hidden = layer(hidden)
    if kind == "compiled":
        hidden = keras.layers.Lambda(activation)(hidden)
    if kind == "teacher":
        goal = outside(inputs, training=True)
        hidden = keras.layers.Add()([hidden, goal])
    return keras.Model(inputs, hidden)


def results(
    strategy: Any,
    kind: str,
    steps: int,
) -> list[float]:
    """Returns losses, an evaluation, and sums of predictions and weights."""
    outside = teacher()
    model = ready(
        strategy,
        lambda: model_of(kind, outside),
        optimizer="adam",
        metrics=["accuracy"],
        steps_per_execution=steps,
        jit_compile=False,
    )
    history = model.fit(data(kind), verbose=0).history
    losses = history["loss"]
    evaluation = model.evaluate(data(kind), verbose=0)
    prediction = model.predict(data(kind), verbose=0)
    arrays = [prediction, *model.get_weights()]
    sizes = [np.abs(array).sum() for array in arrays]
    return [*losses, *evaluation, *sizes]


def break_partition(how: str) -> None:
    """Breaks what partitions the steps of this process."""
    if how == "rule":
        TABLE["Conv2D"] = fail
    if how == "writing":
        emission: Any = Emission
        emission.all = fail
    if how == "wrong":
        TABLE["BiasAddGrad"] = doubled(TABLE["BiasAddGrad"])


def use_all_cpus(count: int) -> None:
    """Lets TensorFlow's strategy have a replica on each logical CPU, as it has on each GPU."""

    def devices(extended: object, resolver: object, worker: str) -> tuple[tuple[str, ...], str]:
        return tuple(f"{worker}/device:CPU:{place}" for place in range(count)), "CPU"

    CollectiveAllReduceExtended._initialize_local_devices = devices


def main(broken: str, *kinds: str) -> None:
    replicas = int(os.environ.get("REPLICAS", "1"))
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu,
        [tf.config.LogicalDeviceConfiguration()] * replicas,
    )
    strategy = tf.distribute.get_strategy()
    if "SLURM_STEP_ID" in os.environ:
        use_all_cpus(replicas)
        strategy = sr.MultiWorkerMirroredStrategy()
        assert strategy.sharing.local_replicas == replicas
        break_partition(broken)
    for kind in kinds:
        for steps in (1, 2):
            values = results(
                strategy,
                kind,
                steps,
            )
            numbers = [round(float(value), 3) for value in values]
            print(
                "told",
                kind,
                steps,
                numbers,
                flush=True,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
