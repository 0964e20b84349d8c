"""Callbacks of Keras and of one's own."""

# mypy: allow-subclassing-any

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List

import keras
from keras import callbacks as kc
from keras_programs.common import (
    UNEVEN,
    Outcome,
    Program,
    X,
    add,
    build,
    data,
    fitted,
    numbers,
    program,
)

Make = Callable[[], Any]


class Reading(kc.Callback):
    """Reads the metrics, the variables and the learning rate after every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.read: List[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        results = [metric.result() for metric in self.model.metrics]
        iterations = self.model.optimizer.iterations
        self.read += [numbers([results, iterations, self.model.trainable_variables[0]])]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.read += [numbers(self.model.get_metrics_result())]
        self.read += [numbers(self.model.predict(X[:3], verbose=0))]


CALLBACKS: Dict[str, Make] = {
    "early_stopping": lambda: kc.EarlyStopping(monitor="loss", min_delta=0.02),
    "early_stopping_restores": lambda: kc.EarlyStopping(
        "val_loss", patience=1, restore_best_weights=True, mode="max"
    ),
}


def _calling(make: Make) -> Program:
    def program(strategy: Any) -> Outcome:
        model = build(strategy, optimizer=lambda: keras.optimizers.SGD(0.1, use_ema=True))
        return fitted(
            model, data(), epochs=5, validation_data=data(rows=33, batch=8), callbacks=[make()]
        )

    return program


for name, make in CALLBACKS.items():
    add(f"callback_{name}", _calling(make))


def _read(strategy: Any, **size: int) -> Outcome:
    reading = Reading()
    return {**fitted(build(strategy), data(**size), callbacks=[reading]), "read": reading.read}


add("callback_reading_metrics", lambda strategy: _read(strategy))
add("callback_reading_metrics_33", lambda strategy: _read(strategy, **UNEVEN))


def folder() -> Path:
    """One for every process: who writes what into a common one is not asked here."""
    return Path(tempfile.mkdtemp(dir=os.environ.get("TASK_OUTPUT"), prefix=f"saved{os.getpid()}_"))


@program("callback")
def checkpoint_and_load(strategy: Any) -> Outcome:
    file = str(folder() / "best.weights.h5")
    save = kc.ModelCheckpoint(file, save_weights_only=True, save_best_only=True, monitor="loss")
    model = build(strategy)
    model.fit(data(), epochs=3, verbose=0, callbacks=[save])
    model = build(strategy, optimizer=lambda: keras.optimizers.Adam(0.01))
    model.load_weights(file)
    return fitted(model, data(), predict=True)


@program("callback")
def backup_and_restore(strategy: Any) -> Outcome:
    model = build(strategy, optimizer=lambda: keras.optimizers.Adam(0.01))
    backup = kc.BackupAndRestore(str(folder() / "backup"))
    return fitted(model, data(), epochs=3, callbacks=[backup])
