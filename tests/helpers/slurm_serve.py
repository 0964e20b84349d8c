"""Trains with servers in the tasks of a test step, to show how the servers end.

With ``--legacy``, all workers train in sessions of `tf.compat.v1`. Otherwise a coordinator in the
chief schedules the steps; with ``--keras``, Keras 3's `fit` does. The training stops after
``--steps`` steps, or when the file STOP exists in the folder TASK_OUTPUT. Each task writes its
process id to that folder, and the leader writes the number of steps done.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf
from kinds import Action

from slurm_resolver import ParameterServerStrategy, SlurmClusterResolver

OUTPUT = Path(os.environ["TASK_OUTPUT"])
v1 = tf.compat.v1


def tell(name: str, what: object) -> None:
    (OUTPUT / f"{name}.new").write_text(str(what))
    (OUTPUT / f"{name}.new").rename(OUTPUT / name)


def repeat(step: Action, args: argparse.Namespace, leads: bool) -> None:
    done = 0
    while (done < args.steps) if args.steps else not (OUTPUT / "STOP").exists():
        step()
        done += 1
        if leads:
            tell("steps", done)
        time.sleep(0.01)


def coordinate(resolver: SlurmClusterResolver, args: argparse.Namespace) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variables = [tf.Variable(0.0) for _ in range(args.ps)]  # one on each ps

    def work() -> None:
        for variable in variables:
            variable.assign_add(1.0)

    function = tf.function(work)

    def step() -> None:
        coordinator.schedule(function)
        coordinator.join()

    repeat(step, args, leads=True)


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


def train(server: Any, index: int, args: argparse.Namespace) -> None:
    own = f"/job:worker/task:{index}"
    config = v1.ConfigProto(device_filters=["/job:ps", own])
    with v1.device(v1.train.replica_device_setter(ps_tasks=args.ps, worker_device=own)):
        step = v1.assign_add(v1.train.get_or_create_global_step(), 1)
    if index > 0:
        missing = v1.report_uninitialized_variables()
        with v1.Session(server.target, config=config) as session:
            while session.run(missing).size:
                time.sleep(0.1)
    with v1.train.MonitoredTrainingSession(server.target, index == 0, config=config) as session:
        tell(f"worker-{index}.trains", "")
        repeat(lambda: session.run(step), args, leads=index == 0)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--legacy", action="store_true")
    parser.add_argument("--keras", action="store_true")
    parser.add_argument(
        "--steps",
        type=int,
        default=0,
    )
    parser.add_argument(
        "--ps",
        type=int,
        default=1,
    )
    args = parser.parse_args()
    jobs = {"ps": args.ps, "worker": -1}
    resolver = SlurmClusterResolver(jobs if args.legacy else {"chief": 1, **jobs})
    task = resolver.cluster.task
    assert task is not None
    tell(f"{task.job}-{task.index}.pid", os.getpid())
    if args.legacy:
        v1.disable_eager_execution()
        server = v1.train.Server(resolver.cluster_spec(), task.job, task.index)
        if task.job == "ps":
            return resolver.serve(server)
        train(server, task.index, args)
    elif task.job == "chief":
        (fit if args.keras else coordinate)(resolver, args)
    else:
        return resolver.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
