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
    Recorder,
    X,
    Y,
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


class StopAfter(kc.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 2:
            self.model.stop_training = True


class Evaluating(kc.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["extra"] = self.model.evaluate(X[:33], Y[:33], verbose=0)[0]


class Raising(kc.Callback):
    """Changes the learning rate after every batch, as a finder of rates does."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.05 * (batch + 1)


CALLBACKS: Dict[str, Make] = {
    "early_stopping": lambda: kc.EarlyStopping(monitor="loss", min_delta=0.02),
    "early_stopping_restores": lambda: kc.EarlyStopping(
        "val_loss", patience=1, restore_best_weights=True, mode="max"
    ),
    "reduce_on_plateau": lambda: kc.ReduceLROnPlateau(
        "val_loss", factor=0.5, patience=0, min_delta=0.05, verbose=0
    ),
    "scheduler": lambda: kc.LearningRateScheduler(lambda epoch, rate: rate / (epoch + 1)),
    "terminate_on_nan": kc.TerminateOnNaN,
    "swap_ema": lambda: kc.SwapEMAWeights(swap_on_epoch=True),
    "stop_after_a_batch": StopAfter,
    "evaluating": Evaluating,
    "raising_the_rate": Raising,
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


@program("callback")
def batches_of_5_per_execution(strategy: Any) -> Outcome:
    recorder = Recorder()
    model = build(strategy, steps_per_execution=5)
    found = fitted(model, data(rows=112, batch=16), callbacks=[recorder])
    return {**found, "batches": recorder.train}


@program("callback")
def nan_in_the_end(strategy: Any) -> Outcome:
    """A row of one worker makes the loss infinite; all stop after the same batch."""
    broken, recorder = X.copy(), Recorder()
    broken[60] = float("inf")
    stop = kc.TerminateOnNaN()
    build(strategy).fit(data(broken), epochs=3, verbose=0, callbacks=[stop, recorder])
    return {"batches": len(recorder.train), "before": recorder.train[:2]}


@program("callback")
def lambdas(strategy: Any) -> Outcome:
    losses: List[Any] = []
    call = kc.LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["loss"]))
    return {**fitted(build(strategy), data(), callbacks=[call]), "losses": losses}


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
def csv_logger(strategy: Any) -> Outcome:
    file = folder() / "log.csv"
    fitted(build(strategy), data(), callbacks=[kc.CSVLogger(str(file))])
    rows = [line.split(",") for line in file.read_text().split()] if file.exists() else []
    return {"rows": [[float(value.replace("NA", "-1")) for value in row] for row in rows[1:]]}


@program("callback")
def backup_and_restore(strategy: Any) -> Outcome:
    model = build(strategy, optimizer=lambda: keras.optimizers.Adam(0.01))
    backup = kc.BackupAndRestore(str(folder() / "backup"))
    return fitted(model, data(), epochs=3, callbacks=[backup])
