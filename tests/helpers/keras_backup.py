"""Trains Keras 3 models with BackupAndRestore, whose training is broken off in the third epoch.

Each worker writes its results as JSON to the file <kind>-<index>. The kind is the argument. With
"broken off", worker 1 is killed. With "resumed", a later start, whose number of workers may differ,
ends that training. With "stories", both happen in one process, with callbacks and optimizers of
several kinds; worker 0 does the same alone before, for comparison.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_programs.common import perceptron, ready
from keras_programs.workflows import GUIDES
from kinds import Action, Fields
from labelled_rows import BrokenOffError, Interrupt, data, raise_error

import slurm_resolver as sr

FOLDER = Path.cwd()
EPOCHS = 4
BREAK = 10  # the second of four steps of the third epoch


def model_with(strategy: Any, optimizer: Action, built: bool = True) -> Any:
    make = perceptron if built else GUIDES["unbuilt_sequential"]
    return ready(
        strategy,
        make,
        optimizer=optimizer,
        metrics=["accuracy"],
    )


def adam() -> Any:
    return keras.optimizers.Adam(0.01)


def momentum() -> Any:
    return keras.optimizers.SGD(
        0.05,
        momentum=0.9,
        use_ema=True,
    )


def scaled() -> Any:
    return keras.optimizers.LossScaleOptimizer(adam(), initial_scale=8.0)


# The optimizer, the arguments of BackupAndRestore, whether the model is built at once, and the
# other callbacks.
STORIES: Fields = {
    "epochs": (adam, {}, True, lambda: [keras.callbacks.EarlyStopping("loss", patience=2)]),
    "batches": (momentum, {"save_freq": 3, "delete_checkpoint": False}, True, list),
    "double": (scaled, {"double_checkpoint": True}, False, list),
}


def fit(model: Any, *callbacks: Any) -> list[int]:
    """Trains, and returns the epochs."""
    epochs: list[int] = model.fit(
        data(),
        epochs=EPOCHS,
        verbose=0,
        callbacks=list(callbacks),
    ).epoch
    return epochs


def weights(model: Any) -> list[Any]:
    return [value.numpy().tolist() for value in [*model.weights, *model.optimizer.variables]]


def told(name: str, strategy: Any, folder: Path) -> Fields:
    """Breaks a training off, and ends it with a new model; returns its epochs and weights."""
    optimizer, options, built, others = STORIES[name]
    log = folder / f"{name}.csv"
    backup = folder / name
    for attempt in range(2):
        model = model_with(strategy, optimizer, built)
        if not built:  # outside the scope, where TensorFlow's own strategies cannot
            ours = isinstance(strategy, sr.MultiWorkerMirroredStrategy)
            with contextlib.nullcontext() if ours else strategy.scope():
                model.build((None, 6))
        callbacks = [
            keras.callbacks.BackupAndRestore(str(backup), **options),
            keras.callbacks.CSVLogger(str(log), append=True),
            *others(),
        ]
        try:
            epochs = fit(model, *callbacks, *([] if attempt else [Interrupt(BREAK, raise_error)]))
        except BrokenOffError:
            left = sorted(path.name for path in backup.glob("[!.]*"))
    return {
        "epochs": epochs,
        "logged": np.genfromtxt(log, delimiter=",").tolist(),  # NaN for a name, or no value
        "left": left,
        "weights": weights(model),
    }


def main() -> None:
    kind = sys.argv[1]
    strategy = sr.MultiWorkerMirroredStrategy()
    index = strategy.cluster_resolver.task_id
    alone = tf.distribute.OneDeviceStrategy("/cpu:0")
    found: Fields = {}
    if kind == "stories":
        if index == 0:  # the other worker waits for the first variable
            (FOLDER / "alone").mkdir()
            found["alone"] = {name: told(name, alone, FOLDER / "alone") for name in STORIES}
        for name in STORIES:
            found[name] = told(name, strategy, FOLDER)
    else:
        model = model_with(strategy, adam)
        backup = keras.callbacks.BackupAndRestore(str(FOLDER / "backup"))
        if kind == "broken off":
            end = Interrupt(BREAK, lambda: os.kill(os.getpid(), signal.SIGKILL))
            fit(model, backup, *([end] if index == 1 else []))
        found["epochs"] = fit(model, backup)
        found["weights"] = weights(model)
        whole = model_with(alone, adam)
        fit(whole)
        found["uninterrupted"] = weights(whole)
    (FOLDER / f"{kind}-{index}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
