"""Trains with a chief, a parameter server and a worker, of which two are lost on the way.

The server is lost in the first start, the chief in the second. The chief tells with how many steps
behind it each start begins, and at the end how many there are, and how far its weights are from
those of a training in one process that nothing happens to.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import slurm_resolver as sr

FOLDER = Path(sys.argv[1])
EPOCHS, STEPS, SAVE_EVERY = 4, 20, 10
LOST_AT = {0: ("ps", 25), 1: ("chief", 45)}  # by start, and after how many steps


def await_file(name: str) -> None:
    while not (FOLDER / name).exists():
        time.sleep(0.02)


def build() -> Any:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu")])
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def fit(model: Any, *callbacks: Any) -> None:
    numbers = tf.random.stateless_normal([8 * STEPS, 4], seed=[1, 2])
    wanted = tf.reduce_sum(numbers, axis=1, keepdims=True)
    data = tf.data.Dataset.from_tensor_slices((numbers, wanted)).batch(8)
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=list(callbacks))


class Loses(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, start: int) -> None:
        super().__init__()
        self.job, self.at = LOST_AT.get(start, ("", 0))

    def on_train_begin(self, logs: Any = None) -> None:
        self.done = int(self.model.optimizer.iterations)
        print("begins after", self.done, flush=True)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.done += 1
        if self.done == self.at and self.job == "chief":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.done == self.at:
            (FOLDER / "lose").touch()
            await_file("lost")


def end_when_asked() -> None:
    await_file("lose")
    (FOLDER / "lost").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    resolver = sr.SlurmClusterResolver({"chief": 1, "ps": 1, "worker": -1})
    if resolver.task_type == "ps" and not (FOLDER / "lost").exists():
        threading.Thread(target=end_when_asked, daemon=True).start()
    if resolver.task_type != "chief":
        sys.exit(resolver.serve())
    start = len(list(FOLDER.glob("start.*")))
    (FOLDER / f"start.{start}").touch()
    strategy = sr.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = build()
    backup = sr.BackupAndResume(str(FOLDER / "checkpoints"), save_every=SAVE_EVERY)
    fit(model, backup, Loses(start))
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        alone = build()
    fit(alone)
    pairs = zip(model.get_weights(), alone.get_weights())
    far = max(float(np.max(np.abs(one - other))) for one, other in pairs)
    print(f"ends after {int(model.optimizer.iterations)}, off by {far:g}", flush=True)


if __name__ == "__main__":
    main()
