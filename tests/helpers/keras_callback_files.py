"""Trains with callbacks that write files, in one process or in several workers.

    python keras_callback_files.py PROGRAM [--alone]

The program "files" writes to the current folder. It writes only rounded numbers, as the results of
several workers differ by rounding. "orbax" continues with what OrbaxCheckpoint has saved; each
worker writes its results as JSON to the file <index>.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_programs.common import perceptron, ready
from labelled_rows import X, Y, data

import slurm_resolver as sr

FOLDER = Path.cwd()
STRATEGY = (
    tf.distribute.get_strategy() if "--alone" in sys.argv else sr.MultiWorkerMirroredStrategy()
)
INDEX = getattr(STRATEGY.cluster_resolver, "task_id", 0)
kinds: Any = keras.callbacks


class Report(kinds.Callback):  # type: ignore[misc]
    """Predicts, which all workers do together, and writes what it has found."""

    def on_train_begin(self, logs: Any = None) -> None:
        os.makedirs(FOLDER / "matrices")  # raises an error if it exists

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        guesses = self.model.predict(X, verbose=0).argmax(axis=1)
        matrix = tf.math.confusion_matrix(Y, guesses, 3).numpy()
        np.save(FOLDER / "matrices" / f"{epoch}.npy", matrix)
        for name in ("log", f"of-worker-{INDEX}"):
            with open(FOLDER / f"{name}.txt", "a") as file:
                file.write(f"epoch {epoch}: {logs['loss']:.2f}\n")


def fit(model: Any, *callbacks: Any) -> list[float]:
    losses: list[float] = model.fit(
        data(),
        epochs=3,
        verbose=0,
        callbacks=[*callbacks],
    ).history["loss"]
    return losses


def write_files() -> None:
    model = ready(STRATEGY, perceptron, optimizer="adam")
    loggers = [
        kinds.CSVLogger(str(FOLDER / name), append=True)
        for name in ("log.csv", f"of-worker-{INDEX}.csv")
    ]
    paths = [logger.filename for logger in loggers]
    fit(
        model,
        *loggers,
        kinds.ModelCheckpoint(str(FOLDER / "steps-{batch}.keras"), save_freq=2),
        kinds.BackupAndRestore(str(FOLDER / "backup")),
        kinds.TensorBoard(str(FOLDER / "tensorboard")),
        Report(),
    )
    assert [logger.filename for logger in loggers] == paths


def use_orbax() -> None:
    saved = FOLDER / "saved"
    model = ready(STRATEGY, perceptron, optimizer="adam")
    losses = fit(model, kinds.OrbaxCheckpoint(str(saved), max_to_keep=2))
    with STRATEGY.scope():
        model = keras.models.load_model(saved)
    losses += fit(model)
    names = sorted(path.name for path in saved.iterdir())
    (FOLDER / f"{INDEX}").write_text(json.dumps({"saved": names, "losses": losses}))


if __name__ == "__main__":
    {"files": write_files, "orbax": use_orbax}[sys.argv[1]]()
