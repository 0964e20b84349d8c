"""Trains a model on batches of several kinds, alone or in workers, and prints what it gets.

The first argument says what is broken in the partition of the steps: "nothing", a "rule", or
"writing". The others are kinds of data. REPLICAS is the number of replicas of each worker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import slurm_resolver as sr
from slurm_resolver.tf.partition.emission import Emission
from slurm_resolver.tf.partition.table import TABLE

ROWS = 13
BATCH = 6  # so that the last batch has one row
random = np.random.default_rng(0)
X = random.normal(size=(ROWS, 8, 8, 3)).astype("float32")
Y = random.integers(3, size=ROWS)
SIGNATURE = (tf.TensorSpec([None, 8, 8, 3]), tf.TensorSpec([None], tf.int64))


def generated() -> Iterator[Any]:
    for first in range(0, ROWS, BATCH):
        yield X[first : first + BATCH], Y[first : first + BATCH]


def data(kind: str) -> Any:
    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    if kind == "unknown":
        rows = rows.filter(lambda x, y: True)
    if kind == "generator":
        return tf.data.Dataset.from_generator(generated, output_signature=SIGNATURE)
    return rows.batch(BATCH)


def fail(*_: Any) -> Any:
    raise ZeroDivisionError("as the test wants it")


def compiled(steps: int) -> Any:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8, 8, 3))
    hidden = keras.layers.Conv2D(4, 3, activation="relu")(inputs)
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.Flatten()(keras.layers.MaxPooling2D()(hidden))
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Dropout(0.3)(hidden)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], steps_per_execution=steps)
    return model


def results(strategy: Any, kind: str, steps: int) -> list[float]:
    with strategy.scope():
        model = compiled(steps)
    history = model.fit(data(kind), epochs=1, verbose=0).history
    found = [value for values in history.values() for value in values]
    found += model.evaluate(data(kind), verbose=0)
    found += [np.abs(model.predict(data(kind), verbose=0)).sum()]
    return [*found, sum(np.abs(weight).sum() for weight in model.get_weights())]


def main(broken: str, *kinds: str) -> None:
    devices = [tf.config.LogicalDeviceConfiguration()] * int(os.environ.get("REPLICAS", "1"))
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, devices)
    strategy = tf.distribute.get_strategy()
    if "SLURM_STEP_ID" in os.environ:
        strategy = sr.MultiWorkerMirroredStrategy()
        if broken == "rule":
            TABLE["Conv2D"] = fail
        if broken == "writing":
            emission: Any = Emission
            emission.create = fail
    for kind in kinds:
        for steps in (1, 2):
            numbers = [round(float(value), 3) for value in results(strategy, kind, steps)]
            print("found", kind, steps, numbers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
