"""Trains with a parameter server; the first start of the job waits in its second epoch for its end.

The folder TASK_OUTPUT gets the file "waits" then, and at the end "chief" with what came of it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from keras_programs import common as cases

import slurm_resolver as sr

STEPS = 100  # of an epoch
OUTPUT = Path(os.environ["TASK_OUTPUT"])


class Wait(keras.callbacks.Callback):  # type: ignore[misc]
    """Waits where everything but the last few steps has been saved."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.model.waits and batch == STEPS - 5:
            (OUTPUT / "waits").touch()
            while True:
                time.sleep(1)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.waits = epoch == 1 and "SLURM_RESTART_COUNT" not in os.environ


def main() -> None:
    resolver = sr.SlurmClusterResolver({"chief": 1, "ps": 1, "worker": -1})
    if resolver.task_type != "chief":
        sys.exit(resolver.serve())
    strategy = sr.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=[cases.Rows()])
    rows = np.arange(STEPS * 3) % cases.ROWS
    data = tf.data.Dataset.from_tensor_slices((cases.X[rows], cases.Y[rows])).batch(3)
    backup = sr.BackupAndResume(str(OUTPUT / "checkpoints"), save_every=30)
    history = model.fit(data, epochs=3, verbose=0, callbacks=[backup, Wait()]).history
    found = {"steps": int(model.optimizer.iterations), "rows": history["rows"]}
    (OUTPUT / "chief").write_text(json.dumps(found, default=float))


if __name__ == "__main__":
    main()
