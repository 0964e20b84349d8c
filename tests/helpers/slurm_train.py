"""Trains a tiny model, and injects faults into itself at given steps.

Each rank writes its events to OUT/rank.N.jsonl: its start, its steps, and its final weights.
`--faults` is a list with an item [rank, step, what] for each start of the job. `what` is a signal
that the rank sends to itself, another case of `Story.happen`, or a shell command.
"""

from __future__ import annotations

import argparse
import atexit
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

atexit.register(print, "flushed")  # before any other

import tensorflow as tf  # noqa: E402

import slurm_resolver as sr  # noqa: E402

STEPS = 10  # in an epoch
EXAMPLES = 8 * STEPS
BATCH = 8
OPTIONS = {
    "--epochs": 4,
    "--per-epoch": 0,  # keras: with 1, an iterator for each epoch
    "--batch-of-each": 0,  # keras: rows in a worker's batch; with 0, there are 8 in all
    "--ballast": 0,  # loop: MiB that the checkpoint has
    "--sleep": 0.0,
}


class Story:
    """Records what this rank does, and injects its faults."""

    def __init__(self, args: argparse.Namespace, rank: int, start: int) -> None:
        self.path = Path(args.out) / f"rank.{rank}.jsonl"
        self.rank = rank
        self.start = start
        faults = json.loads(args.faults)
        # Steps are slow only in the first start and in starts with a fault.
        self.sleep = args.sleep if start < max(1, len(faults)) else 0.0
        self.fault = faults[start] if start < len(faults) else None
        self.signals_in_validation = False

    def tell(self, **facts: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"start": self.start, **facts}) + "\n")

    def after_step(self, done: int) -> None:
        """`done` counts all steps of the training."""
        self.tell(done=done)
        if self.fault and self.fault[0] == self.rank and self.fault[1] == done:
            self.happen(self.fault[2])
        if not self.fault or done >= self.fault[1]:  # so that all ranks agree in time
            time.sleep(self.sleep)

    def in_validation(self, batch: int) -> None:
        if self.signals_in_validation:
            if batch == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(self.sleep)

    def happen(self, what: str) -> None:
        if what == "SIGTERM in validation":
            self.signals_in_validation = True
        elif what == "kill in save":
            threading.Thread(
                target=self.kill_in_save,
                daemon=True,
            ).start()
        elif what.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, what))
        else:
            subprocess.run(what, shell=True)  # may signal the whole step, this rank included

    def kill_in_save(self) -> None:
        """Kills this process once the first file of the next checkpoint exists."""
        folder = self.path.parent / "checkpoints"
        before = set(folder.rglob("*"))
        while not {path for path in folder.rglob("*") if path.is_file()} - before:
            pass
        os.kill(os.getpid(), signal.SIGKILL)


def arrays() -> tuple[Any, Any]:
    """Returns the rows, the same in every process, and their sums as targets."""
    numbers = tf.random.stateless_normal([EXAMPLES, 4], seed=[1, 2])
    return numbers, tf.reduce_sum(
        numbers,
        axis=1,
        keepdims=True,
    )


def shuffled(epoch: int = 0) -> tf.data.Dataset:
    """Returns the rows in the order of an epoch, divided among the workers by row."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return (
        tf.data.Dataset.from_tensor_slices(arrays())
        .shuffle(EXAMPLES, seed=1 + epoch)
        .with_options(options)
    )


def train_keras(args: argparse.Namespace, story: Story, strategy: Any, config: Any) -> Any:
    """Trains until EarlyStopping has seen four epochs, in none of which anything improves."""
    import keras

    class Tell(keras.callbacks.Callback):  # type: ignore[misc]
        epoch = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            story.after_step(self.epoch * STEPS + batch + 1)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            story.tell(begins=self.epoch * STEPS + batch)

        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            story.in_validation(batch)

    with strategy.scope():
        keras.utils.set_random_seed(3)
        layers = keras.layers
        model = keras.Sequential(
            [keras.Input((4,)), layers.Dense(8, "relu"), layers.Dropout(0.2), layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    backup = sr.BackupAndResume(f"{args.out}/checkpoints", config, save_every=args.save_every)
    stop = keras.callbacks.EarlyStopping(
        "val_loss",
        min_delta=10.0,
        patience=3,
    )
    batch = args.batch_of_each * strategy.num_replicas_in_sync or BATCH
    data = shuffled().repeat().batch(batch)
    steps: int | None = STEPS
    if args.per_epoch:
        data = shuffled().batch(batch)
        steps = None
    history = model.fit(
        data,
        epochs=args.epochs + 4,
        steps_per_epoch=steps,
        validation_data=tf.data.Dataset.from_tensor_slices(arrays()).batch(BATCH),
        callbacks=[backup, stop, Tell()],
        verbose=0,
    )
    story.tell(
        history={name: list(map(float, values)) for name, values in history.history.items()},
        epochs=history.epoch,
    )
    return model.get_weights()


def train_loop(args: argparse.Namespace, story: Story, strategy: Any, config: Any) -> Any:
    with strategy.scope():
        weights = tf.Variable(tf.zeros([4, 1]), name="weights")
        speed = tf.Variable(
            tf.zeros([4, 1]),
            name="speed",
            trainable=False,
        )
        ballast = tf.Variable(
            tf.zeros([args.ballast, 2**18]),
            name="ballast",
            trainable=False,
        )

    @tf.function  # type: ignore[untyped-decorator]
    def step(batch: Any) -> None:
        def replica(numbers: Any, wanted: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((numbers @ weights - wanted) ** 2)
            slope = tf.distribute.get_replica_context().all_reduce(
                "sum", tape.gradient(loss, weights)
            )
            speed.assign(0.9 * speed - 0.01 * slope)
            weights.assign_add(speed)

        strategy.run(replica, args=batch)

    loop = sr.ResumableLoop(
        f"{args.out}/checkpoints",
        strategy,
        termination=config,
        save_every=args.save_every,
        weights=weights,
        speed=speed,
        ballast=ballast,
    )
    for epoch in loop.epochs(args.epochs):
        for batch in loop.batches(
            strategy.experimental_distribute_dataset(shuffled(epoch).batch(BATCH))
        ):
            story.tell(begins=epoch * STEPS + loop.step)
            step(batch)
            story.after_step(epoch * STEPS + loop.step + 1)
    return [weights.numpy(), speed.numpy()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("keras", "loop"))
    parser.add_argument("out")
    parser.add_argument("--faults", default="[]")
    for name, default in OPTIONS.items():
        parser.add_argument(
            name,
            type=type(default),
            default=default,
        )
    parser.add_argument("--save-every", type=int)
    args = parser.parse_args()

    resolver = sr.SlurmClusterResolver()
    rank = resolver.cluster.task.rank if resolver.cluster.task else 0
    counter = Path(args.out) / f"starts.{rank}"
    start = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(start + 1))
    story = Story(args, rank, start)
    config = sr.termination_config(resolver)
    strategy = sr.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    train = train_loop if args.kind == "loop" else train_keras
    weights = train(args, story, strategy, config)
    digest = hashlib.sha256(b"".join(array.tobytes() for array in weights)).hexdigest()
    story.tell(weights=digest)
    print(f"rank {rank}: {digest}", file=sys.stderr)


if __name__ == "__main__":
    main()
