"""Trains with servers in the tasks of a test step, to show how the servers end.

A coordinator in the chief schedules the steps; with ``--keras``, Keras 3's `fit` does. The training
stops when the file STOP exists in the folder TASK_OUTPUT. Each task writes its process id to that
folder, and the chief writes the number of steps done.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from slurm_resolver import ParameterServerStrategy, SlurmClusterResolver

OUTPUT = Path(os.environ["TASK_OUTPUT"])


def tell(name: str, what: object) -> None:
    (OUTPUT / f"{name}.new").write_text(str(what))
    (OUTPUT / f"{name}.new").rename(OUTPUT / name)


def coordinate(resolver: SlurmClusterResolver, args: argparse.Namespace) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variables = [tf.Variable(0.0) for _ in range(args.ps)]  # one on each ps

    def work() -> None:
        for variable in variables:
            variable.assign_add(1.0)

    function = tf.function(work)

    done = 0
    while not (OUTPUT / "STOP").exists():
        coordinator.schedule(function)
        coordinator.join()
        done += 1
        tell("steps", done)
        time.sleep(0.01)


def fit(resolver: SlurmClusterResolver, args: argparse.Namespace) -> None:
    """Coordinates the steps with Keras 3's `fit`."""
    import keras

    strategy = ParameterServerStrategy(resolver)
    with strategy.scope():
        layers = [keras.layers.Dense(4) for _ in range(args.ps)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile("sgd", "mse")

    class Tells(keras.callbacks.Callback):  # type: ignore[misc]
        done = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.done += 1
            tell("steps", self.done)
            self.model.stop_training = (OUTPUT / "STOP").exists()
            time.sleep(0.01)

    history = model.fit(
        tf.data.Dataset.from_tensors((tf.ones((2, 4)), tf.ones((2, 4)))).repeat(),
        steps_per_epoch=10**6,
        callbacks=[Tells()],
        verbose=0,
    ).history
    assert 0 <= history["loss"][-1] < 100


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keras", action="store_true")
    parser.add_argument("--ps", type=int, default=1)
    args = parser.parse_args()
    resolver = SlurmClusterResolver({"chief": 1, "ps": args.ps, "worker": -1})
    task = resolver.cluster.task
    assert task is not None
    tell(f"{task.job}-{task.index}.pid", os.getpid())
    if task.job != "chief":
        return resolver.serve()
    (fit if args.keras else coordinate)(resolver, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
