"""Trains with Keras' `fit`; one rank stops its own process at a moment.

Arguments: the moment, such as "step", and the rank. Without them, nobody stops.
"""

from __future__ import annotations

import glob
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import slurm_resolver as sr

MOMENT, VICTIM = (*sys.argv[1:], "", "")[:2]
RANK = os.environ["SLURM_PROCID"]


def note(event: str) -> None:
    Path(f"{event}.{RANK}").write_text(str(os.getpid()))


def reach(moment: str) -> None:
    """Stops this process if this is the moment, which comes more than once."""
    if (moment, RANK) == (MOMENT, VICTIM) and not Path(f"pid.{RANK}").exists():
        note("pid")
        os.kill(os.getpid(), signal.SIGSTOP)


class Saved(keras.layers.Dense):  # type: ignore[misc]
    def save_own_variables(self, store: Any) -> None:
        reach("saving")
        super().save_own_variables(store)


class Stops(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            reach("first step")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        reach("step")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        reach("epoch's end")


def train(callbacks: Sequence[Any]) -> None:
    strategy = sr.MultiWorkerMirroredStrategy()
    rows = np.ones((64, 4), "float32")
    with strategy.scope():
        reach("scope")
        model = keras.Sequential([keras.Input((4,)), Saved(1)])
        model.compile("adam", "mse")
    reach("before fit")
    model.fit(rows, rows[:, :1], batch_size=16, epochs=2, verbose=0, callbacks=callbacks)
    # The first one that saves writes the file, and the others wait for it.
    while MOMENT == "saving" and RANK != VICTIM and not glob.glob(".saving-*"):
        time.sleep(0.1)
    model.save("model.keras")
    reach("before predict")
    model.predict(rows, batch_size=16, verbose=0)


if __name__ == "__main__":
    try:
        train([Stops()])
        note("trained")
    finally:
        note("ended")
