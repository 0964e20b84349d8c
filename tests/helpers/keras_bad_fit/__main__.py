"""Calls Keras 3's `fit` in two workers in ways that cannot be one training.

Each worker writes its errors as JSON to TASK_OUTPUT/<index>. With "failing N", worker N raises an
exception in a callback. Worker 0 evaluates alone after `fit` with "alone after", and in a callback
with "alone within". With "alone batch", it calls `train_on_batch` alone after `fit`. With "ending",
worker 1 ends the first epoch early: see `END_EARLY`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from keras_bad_fit.common import WAYS, WORKER, Does, X, Y, data, fit, in_scope, stop, trained
from kinds import Action

# Each module registers its calls.
for module in ("models", "workers"):
    import_module(f"keras_bad_fit.{module}")


def train_short() -> None:
    """Trains on data of an unknown length, of which worker 1 has less."""
    rows = data(96 - 48 * WORKER)
    fit(x=rows.filter(lambda x, y: tf.reduce_all(x > 0)))


def take_a_step(model: Any) -> None:
    model.train_on_batch(X, Y)


END_EARLY: dict[str, Action] = {
    "stop": lambda: fit(callbacks=[Does(stop, step=1)] if WORKER else []),
    "data": train_short,
    "killed": lambda: fit(
        callbacks=[Does(lambda model: os.kill(os.getpid(), signal.SIGKILL))] if WORKER else []
    ),
    "step": lambda: fit(callbacks=[] if WORKER else [Does(take_a_step)]),
}


def main() -> None:
    kind, name = (sys.argv[1:] or ["all", ""])[:2]
    if kind == "failing":

        def fails(model: Any) -> None:
            if int(name) == WORKER:
                raise RuntimeError("of the callback")

        fit(epochs=2, callbacks=[Does(fails)])
    if kind == "ending":
        END_EARLY[name]()
    if kind == "alone":
        built = in_scope()
        if name == "scope" and WORKER == 0:
            in_scope()

        def evaluates(model: Any) -> None:
            if WORKER == 0:
                model.evaluate(X, Y, verbose=0)

        trained(
            built,
            epochs=2,
            callbacks=[Does(evaluates)] if name == "within" else [],
        )
        if name == "batch" and WORKER == 0:
            built.train_on_batch(X, Y)
        elif name != "batch":
            evaluates(built)
        return
    found: dict[str, object] = {}
    for name, function in WAYS.items():
        try:
            found[name] = function()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    Path(os.environ["TASK_OUTPUT"], str(WORKER)).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
