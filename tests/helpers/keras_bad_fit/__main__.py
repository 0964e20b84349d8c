"""Calls Keras 3's `fit` in two workers in ways that cannot be one training.

Each worker writes its errors as JSON to the file <index>. With the name of an action of
`IN_ONE`, one worker does it alone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Callable

import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from keras_bad_fit.common import (
    WAYS,
    WORKER,
    Does,
    X,
    Y,
    data,
    fit,
    fit_with,
    in_scope,
    stop,
    trained,
)
from kinds import Action

# Each module registers its calls.
for module in ("models", "workers"):
    import_module(f"keras_bad_fit.{module}")


def train_short() -> None:
    """Trains on data of an unknown length, of which worker 1 has less."""
    rows = data(96 - 48 * WORKER)
    fit(x=rows.filter(lambda x, y: tf.reduce_all(x > 0)))


def fit_before(call: Callable[[Any], object]) -> None:
    built = in_scope()
    trained(built)
    if WORKER == 0:
        call(built)


def make_another() -> None:
    built = in_scope()
    if WORKER == 0:
        in_scope()
    trained(built)


def evaluate(model: Any) -> None:
    model.evaluate(X, Y, verbose=0)


def take_a_step(model: Any) -> None:
    model.train_on_batch(X, Y)


def fail(model: Any) -> None:
    raise RuntimeError("of the callback")


def end(model: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


IN_ONE: dict[str, Action] = {
    "fails 0": lambda: fit_with(Does(fail), 0),
    "fails 1": lambda: fit_with(Does(fail), 1),
    "stop": lambda: fit_with(Does(stop, step=1), 1),
    "data": train_short,
    "killed": lambda: fit_with(Does(end), 1),
    "step": lambda: fit_with(Does(take_a_step), 0),
    "within": lambda: fit_with(Does(evaluate), 0),
    "after": lambda: fit_before(evaluate),
    "batch": lambda: fit_before(take_a_step),
    "scope": make_another,
}


def main() -> None:
    if sys.argv[1:]:
        IN_ONE[sys.argv[1]]()
        return
    found: dict[str, object] = {}
    for name, function in WAYS.items():
        try:
            found[name] = function()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    Path(str(WORKER)).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
