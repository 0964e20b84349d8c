"""Trains with callbacks that write files as programs do, in one process or in several workers.

Each program of `PROGRAMS` trains one model, and its callback writes to a folder of its name below
TASK_OUTPUT. With several workers, TASK_OUTPUT/<index>.json has the error of each program, or "".
Files hold rounded numbers, as the results of several workers differ by rounding.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import logging
import os
import sqlite3
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import keras
import numpy as np
import tensorflow as tf
from kinds import Fields, Texts
from labelled_rows import LOSS, X, Y, data

import slurm_resolver as sr

EPOCHS = 3
Logs = dict[str, float]
Callback: Any = keras.callbacks.Callback


def rounded(logs: Logs) -> Logs:
    return {name: round(float(value), 2) for name, value in sorted(logs.items())}


class ConfusionMatrix(Callback):  # type: ignore[misc]
    """Predicts, which all workers do together, and draws the confusion matrix."""

    def __init__(self, folder: Path, index: int) -> None:
        super().__init__()
        self.folder = folder / "figures"

    def on_train_begin(self, logs: Any = None) -> None:
        os.makedirs(self.folder)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        guesses = self.model.predict(X, verbose=0).argmax(axis=1)
        matrix = tf.math.confusion_matrix(Y, guesses, 3).numpy()
        image = tf.io.encode_png(tf.cast(matrix[:, :, None], tf.uint8)).numpy()
        (self.folder / f"matrix-{epoch:02d}.png").write_bytes(image)
        np.save(self.folder / f"matrix-{epoch:02d}.npy", matrix)


class Database(Callback):  # type: ignore[misc]
    """Inserts a row in each epoch, whose number is the primary key."""

    def __init__(self, folder: Path, index: int) -> None:
        super().__init__()
        self.path = folder / "metrics.db"

    def on_train_begin(self, logs: Any = None) -> None:
        self.connection = sqlite3.connect(self.path)
        self.connection.execute("CREATE TABLE metrics (epoch INTEGER PRIMARY KEY, loss REAL)")

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        with self.connection:
            self.connection.execute(
                "INSERT INTO metrics VALUES (?, ?)", (epoch, rounded(logs)["loss"])
            )

    def on_train_end(self, logs: Any = None) -> None:
        self.connection.close()


class WeightsHistory(Callback):  # type: ignore[misc]
    """Adds a dataset to an HDF5 file in each epoch."""

    def __init__(self, folder: Path, index: int) -> None:
        super().__init__()
        self.path = folder / "weights.h5"

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        with h5py.File(self.path, "a") as file:
            file[f"epoch-{epoch}"] = np.round(self.model.get_weights()[0], 2)


class LogFile(Callback):  # type: ignore[misc]
    """Logs to a file with Python's logging."""

    def __init__(self, folder: Path, index: int) -> None:
        super().__init__()
        self.path = folder / "train.log"
        self.logger = logging.getLogger("of a callback")
        self.logger.setLevel(logging.INFO)
        self.logger.propagate = False

    def on_train_begin(self, logs: Any = None) -> None:
        self.handler = logging.FileHandler(self.path)
        self.logger.addHandler(self.handler)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.logger.info("epoch %d: %s", epoch, rounded(logs))

    def on_train_end(self, logs: Any = None) -> None:
        self.logger.removeHandler(self.handler)
        self.handler.close()


class Summaries(Callback):  # type: ignore[misc]
    """Writes images of the weights for TensorBoard."""

    def __init__(self, folder: Path, index: int) -> None:
        super().__init__()
        self.folder = folder

    def on_train_begin(self, logs: Any = None) -> None:
        self.writer = tf.summary.create_file_writer(str(self.folder / "images"))

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        image = self.model.get_weights()[0][None, :, :, None]
        with self.writer.as_default():
            tf.summary.image("weights", image, step=epoch)

    def on_train_end(self, logs: Any = None) -> None:
        self.writer.close()


class OwnFile(Callback):  # type: ignore[misc]
    """Writes a file of each worker."""

    def __init__(self, folder: Path, index: int) -> None:
        super().__init__()
        self.path = folder / f"worker-{index}" / "log.txt"

    def on_train_begin(self, logs: Any = None) -> None:
        self.path.parent.mkdir(parents=True)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        with open(self.path, "a") as file:
            file.write(f"{epoch}\n")


def of_keras(folder: Path, index: int) -> list[Any]:
    kinds = keras.callbacks
    return [
        kinds.ModelCheckpoint(str(folder / "steps-{batch}.keras"), save_freq=2),
        kinds.ModelCheckpoint(
            str(folder / "best.weights.h5"),
            save_best_only=True,
            save_weights_only=True,
            monitor="loss",
        ),
        kinds.BackupAndRestore(str(folder / "backup")),
        kinds.EarlyStopping("loss", patience=1, restore_best_weights=True),
        kinds.CSVLogger(str(folder / "log.csv"), append=True),
        kinds.TensorBoard(str(folder / "tensorboard")),
    ]


PROGRAMS: dict[str, Any] = {
    "keras": of_keras,
    "matrix": ConfusionMatrix,
    "database": Database,
    "hdf5": WeightsHistory,
    "log": LogFile,
    "summaries": Summaries,
    "own": OwnFile,
}


def train(strategy: Any, name: str, folder: Path, index: int) -> None:
    keras.utils.set_random_seed(3)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
        model.compile("sgd", LOSS)
    callbacks = PROGRAMS[name](folder, index)
    model.fit(data(), epochs=EPOCHS, verbose=0, callbacks=callbacks)


def read(path: Path) -> Any:
    """Returns what a file contains, so that equal runs have equal contents."""
    if path.suffix in (".txt", ".log"):
        return path.read_text()
    if path.suffix == ".csv":
        return [
            {key: round(float(value), 2) for key, value in row.items() if value != "NA"}
            for row in csv.DictReader(path.read_text().splitlines())
        ]
    if path.suffix == ".npy":
        return np.load(path).tolist()
    if path.suffix == ".db":
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return connection.execute("SELECT * FROM metrics ORDER BY epoch").fetchall()
    if path.name == "weights.h5":
        with h5py.File(path) as file:
            return {key: value[()].tolist() for key, value in file.items()}
    if ".tfevents." in path.name:
        return sum(1 for _ in tf.data.TFRecordDataset(str(path)))
    return "a file"


def contents(folder: Path) -> Fields:
    """Returns all files below a folder; event files have names with host and process."""
    found: Fields = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if ".tfevents." in name:
            key = f"{name.partition('.tfevents.')[0]}.tfevents"
            found[key] = [*found.get(key, []), read(path)]
        else:
            found[name] = read(path) if path.is_file() else "a folder"
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    strategy = None if args.alone else sr.MultiWorkerMirroredStrategy()
    index = strategy.cluster_resolver.task_id if strategy else 0
    root = Path(os.environ["TASK_OUTPUT"])
    errors: Texts = {}
    for name in args.names or PROGRAMS:
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        try:
            train(strategy, name, folder, index)
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    (root / f"{index}.json").write_text(json.dumps(errors))


if __name__ == "__main__":
    main()
