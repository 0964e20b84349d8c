"""Trains with OrbaxCheckpoint, and continues with what it has saved, alone or in several workers.

Each worker writes its results as JSON to TASK_OUTPUT/<index>.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

import keras
from labelled_rows import LOSS, data

import slurm_resolver as sr

FOLDER = Path(os.environ["TASK_OUTPUT"])


def main() -> None:
    strategy = None if "--alone" in sys.argv else sr.MultiWorkerMirroredStrategy()
    index = strategy.cluster_resolver.task_id if strategy else 0
    saved = FOLDER / "saved"
    keras.utils.set_random_seed(3)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
        model.compile("adam", LOSS)
    orbax = keras.callbacks.OrbaxCheckpoint(str(saved), max_to_keep=3)
    losses = model.fit(data(), epochs=4, verbose=0, callbacks=[orbax]).history["loss"]
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.models.load_model(saved)
    losses += model.fit(data(), epochs=2, verbose=0).history["loss"]
    names = sorted(path.name for path in saved.iterdir())
    (FOLDER / f"{index}").write_text(json.dumps({"saved": names, "losses": losses}))


if __name__ == "__main__":
    main()
