"""Trains with a chief, a parameter server and a worker, of which two are lost on the way.

The server is lost in the first start, the chief in the second. The chief prints after how many
steps each start begins, and how many there are at the end.
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
import tensorflow as tf

import slurm_resolver as sr

FOLDER = Path(sys.argv[1])
EPOCHS, STEPS, SAVE_EVERY = 4, 20, 10
LOST_AT = {0: ("ps", 25), 1: ("chief", 45)}  # by start, and after how many steps


def await_file(name: str) -> None:
    while not (FOLDER / name).exists():
        time.sleep(0.02)


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
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    numbers = tf.ones([8 * STEPS, 4])
    data = tf.data.Dataset.from_tensor_slices((numbers, numbers[:, 0])).batch(8)
    backup = sr.BackupAndResume(str(FOLDER / "checkpoints"), save_every=SAVE_EVERY)
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[backup, Loses(start)])
    print("ends after", int(model.optimizer.iterations), flush=True)


if __name__ == "__main__":
    main()
