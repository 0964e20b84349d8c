"""Saves a Keras 3 model in every way, in all workers at once, and reads it back.

Each worker writes its results as JSON to the file <index>. With --load, the workers only load
the model that an earlier run saved; the number of workers may differ.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Callable

import keras
import numpy as np
import tensorflow as tf
from keras.models import save_model  # before the strategy is made
from keras_programs.common import ready
from kinds import Fields, Strings
from labelled_rows import X, data

import slurm_resolver as sr

FOLDER = Path.cwd()
TRIALS = 8


def train(model: Any, **how: Any) -> Any:
    return model.fit(
        data(),
        verbose=0,
        **how,
    ).history


def normalizing() -> Any:
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(400, use_bias=False),  # Adam would amplify a bias' tiny gradient
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(3),
        ]
    )


def build(strategy: Any) -> Any:
    return ready(
        strategy,
        normalizing,
        optimizer=lambda: keras.optimizers.Adam(0.01),
        metrics=["accuracy"],
    )


def predicted(model: Any) -> list[Any]:
    """Returns the predictions for all rows."""
    return list(np.asarray(model.predict(data(), verbose=0)).tolist())


def outcome(action: Callable[..., Any], *given: Any) -> Any:
    """Returns the result of an action, or its error as a text."""
    try:
        return action(*given)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def read(model: Any, name: str) -> str:
    """Loads a saved file; returns "read" if it contains this model."""
    path = FOLDER / name
    if name.endswith((".h5", ".json")) and "weights" in name:
        model.load_weights(path)
        return "read"
    if name == "exported":
        loaded = tf.saved_model.load(str(path))
        served = loaded.serve(X)
    else:
        served = keras.models.load_model(path)(X)
    return "read" if np.allclose(served, model(X), atol=1e-5) else "another model"


# How a model is saved, by the name of the file.
WAYS: dict[str, Callable[[Any, Path], Any]] = {
    "model.keras": lambda model, path: model.save(path),
    "function.keras": lambda model, path: save_model(model, path),
    "model.weights.h5": lambda model, path: model.save_weights(path),
    "folder": lambda model, path: model.save(path, zipped=False),
    "parts.weights.json": lambda model, path: model.save_weights(path, max_shard_size=1e-5),
    "exported": lambda model, path: model.export(path, verbose=False),
    "old.h5": lambda model, path: model.save(path),  # last: Keras omits the optimizer from then on
}


def all_ways(model: Any) -> dict[str, Strings]:
    """Saves and loads repeatedly, so that unsynchronized workers would disturb each other."""

    def once(name: str) -> str:
        WAYS[name](model, FOLDER / name)
        return read(model, name)

    # A worker that exports again would disturb one that still reads.
    return {
        name: sorted({outcome(once, name) for _ in range(1 if name == "exported" else TRIALS)})
        for name in WAYS
    }


def callbacks(model: Any, index: int) -> Fields:
    """Trains with callbacks that write files, and saves one file in a single worker."""
    kinds = keras.callbacks
    best = kinds.ModelCheckpoint(
        str(FOLDER / "best.keras"), save_best_only=True, monitor="accuracy", mode="max"
    )
    given = [
        best,
        kinds.ModelCheckpoint(
            str(FOLDER / "weights-{epoch}" / "of.weights.h5"), save_weights_only=True
        ),
        kinds.BackupAndRestore(str(FOLDER / "backup")),
    ]
    history = train(
        model,
        epochs=3,
        callbacks=given,
    )
    again = [outcome(lambda: model.load_weights(FOLDER / "weights-3" / "of.weights.h5"))]
    if index == 0:
        model.save(FOLDER / "by one.keras")
    train(model)
    return {
        "best": [best.best, max(history["accuracy"])],
        "loaded": again,
    }


def late(model: Any, index: int) -> bool:
    """Exports in the second worker after the first; returns whether it leaves the files alone."""
    file = FOLDER / "late" / "saved_model.pb"
    if index == 1:
        while not file.exists() or list(FOLDER.glob(".saving*")):
            time.sleep(0.01)
        before = file.stat()
    model.export(file.parent, verbose=False)
    return index == 0 or file.stat().st_ino == before.st_ino


def in_scope(strategy: Any, index: int) -> dict[str, list[Any]]:
    """Saves and loads in the scope before the first fit: all workers do, then one alone."""
    model = build(strategy)
    folder = FOLDER / "scope"
    folder.mkdir(exist_ok=True)
    ways = {
        **WAYS,
        "load": lambda model, _: model.load_weights(folder / "model.weights.h5"),
    }
    with strategy.scope():
        return {
            name: [outcome(way, model, folder / name) for _ in range(2 - index)]
            for name, way in ways.items()
        }


def uncompiled(strategy: Any) -> Fields:
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    return {
        "save": outcome(lambda: model.save(FOLDER / "uncompiled.keras")),
        "export": outcome(lambda: model.export(FOLDER / "uncompiled", verbose=False)),
        "fit": outcome(lambda: train(model)),
        "evaluate": outcome(lambda: model.evaluate(data(), verbose=0)),
        "predict": outcome(lambda: np.shape(model.predict(data(), verbose=0))),
    }


def main() -> None:
    loads = "--load" in sys.argv
    strategy = sr.MultiWorkerMirroredStrategy()
    index = strategy.cluster_resolver.task_id
    found: Fields = {}
    if loads:
        with strategy.scope():
            model = keras.models.load_model(FOLDER / "last.keras")
    else:
        found["in_scope"] = in_scope(strategy, index)
        found["uncompiled"] = uncompiled(strategy)
        model = build(strategy)
        train(model)
        found["callbacks"] = callbacks(model, index)
        model.save(FOLDER / "last.keras")
    found["predicted"] = predicted(model)
    train(model)  # the optimizer of a loaded model continues as well
    found["weights"] = [weight.tolist() for weight in model.get_weights()]
    if not loads:
        found["late"] = late(model, index)
        found["ways"] = all_ways(model)
        train(model)
    kind = "loaded-" if loads else ""
    (FOLDER / f"{kind}{index}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
