"""Trains with Keras' `fit` or a loop, and hangs in the place that its argument names.

Rank 1 hangs in step 6 of the first epoch for STUCK_SECONDS seconds.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import slurm_resolver as sr

KIND = sys.argv[1]
RANK = int(os.environ["SLURM_PROCID"])
SECONDS = float(os.environ.get("STUCK_SECONDS", "0"))
ROWS = 4
BATCH = 8
STEPS = 12


def stand_still(kind: str, step: int) -> None:
    if kind == KIND and RANK == 1 and step == 6:
        time.sleep(SECONDS)


def rows() -> Iterator[tuple[Any, Any]]:
    for number in range(BATCH * STEPS):
        if number % BATCH == 0:
            stand_still("data", number // BATCH + 1)
        yield np.full((ROWS,), number % 7, "float32"), np.float32(number % 2)


def dataset() -> Any:
    return tf.data.Dataset.from_generator(
        rows,
        output_signature=(tf.TensorSpec((ROWS,)), tf.TensorSpec(())),
    ).batch(BATCH)


def fit(strategy: Any) -> None:
    import keras

    class Slow(keras.layers.Layer):  # type: ignore[misc]
        """Makes the compilation slow in a good run."""

        def call(self, inputs: Any) -> Any:
            time.sleep(SECONDS / 2 if KIND == "good" else 0)
            return inputs

    class Callback(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            stand_still("callback", batch + 1)
            time.sleep(0.3)

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(0.7)

    with strategy.scope():
        model = keras.Sequential([keras.Input((ROWS,)), Slow(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    validation = dataset() if KIND == "good" else None
    model.fit(
        dataset(),
        epochs=30 if KIND == "slow" else 1,
        verbose=0,
        callbacks=[Callback()],
        validation_data=validation,
    )


def loop(strategy: Any) -> None:
    """Trains in a ResumableLoop that also forks a child process."""
    with strategy.scope():
        weight = tf.Variable(0.0)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(batch: Any) -> Any:
        def step(batch: Any) -> None:
            weight.assign(
                tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_mean(batch[0]))
            )

        strategy.run(step, args=(batch,))

    looping = sr.ResumableLoop("checkpoints", strategy, weight=weight)
    for _ in looping.epochs(1):
        for batch in looping.batches(strategy.experimental_distribute_dataset(dataset())):
            train_step(batch)
            stand_still("loop", looping.step + 1)
            time.sleep(0.3)
            if looping.step == 1:
                multiprocessing.get_context("fork").Process(target=time.sleep, args=[1]).start()


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    on_stall = os.environ.get("ON_STALL", "report")
    make_strategy = sr.MultiWorkerMirroredStrategy
    # It runs when the process reports no more, and is still connected.
    atexit.register(time.sleep, SECONDS / 2 if KIND == "good" and RANK == 0 else 0)
    training = make_strategy(on_stall=on_stall)  # type: ignore[arg-type]
    loop(training) if KIND == "loop" else fit(training)
    print("trained")
