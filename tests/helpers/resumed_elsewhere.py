"""Trains in many ways on as many workers as there are, and breaks off, until the last start.

Each rank appends to OUT/CASE/rank.N.jsonl the samples that it took in each step, once that is done.
A start ends after `--steps` steps, the last one with the training; that also trains each case with
a global batch size that stays once more as a whole, in OUT/whole. What is logged of a case goes to
OUT/CASE/log.N, and its weights and history to OUT/CASE/result.N.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import slurm_resolver as sr

SAMPLES = 100
EPOCHS = 2


class Case(NamedTuple):
    """How a case trains.

    Attributes:
        kind: "loop" or "keras".
        size: a global batch's size on so many replicas.
        data: makes the batches of that size.
    """

    kind: str
    size: Callable[[int], int]
    data: Callable[[int], Any]


def numbers() -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.range(SAMPLES).map(row).with_options(options)


def row(number: Any) -> Any:
    value = tf.cast(number, tf.float32)[tf.newaxis]
    return value, value / SAMPLES


def shuffled(size: int) -> tf.data.Dataset:
    return numbers().shuffle(SAMPLES, seed=1).batch(size)


def arrays(size: int) -> Any:
    """Keras makes batches of them, in an order that it draws anew for each epoch."""
    values = np.arange(SAMPLES, dtype="float32")[:, np.newaxis]
    return {"x": values, "y": values / SAMPLES, "batch_size": size}


def same(replicas: int) -> int:
    return 12


def grows(replicas: int) -> int:
    return 4 * replicas


CASES: Dict[str, Case] = {
    "loop, same": Case("loop", same, shuffled),
    "loop, grows": Case("loop", grows, shuffled),
    "keras, same": Case("keras", same, shuffled),
    "keras, grows": Case("keras", grows, shuffled),
    "keras, arrays, grows": Case("keras", grows, arrays),
}


class BrokenOffError(Exception):
    pass


class Story:
    """What this rank takes, and when it breaks off."""

    def __init__(self, folder: Path, rank: int, replicas: int, steps: Optional[int]) -> None:
        self.path = folder / f"rank.{rank}.jsonl"
        self.left = steps
        self.replicas = replicas
        self.taken: List[int] = []

    def begin_step(self) -> None:
        self.taken = []
        if self.left == 0:
            raise BrokenOffError

    def take(self, values: Any) -> None:
        self.taken += [int(value) for value in np.ravel(values)]

    def end_step(self, epoch: int, step: int) -> None:
        told = {"epoch": epoch, "step": step, "on": self.replicas, "took": self.taken}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")
        if self.left is not None:
            self.left -= 1


def train_loop(case: Case, folder: Path, story: Story, strategy: Any, config: Any) -> List[Any]:
    with strategy.scope():
        weight = tf.Variable(0.0)
    size = case.size(strategy.num_replicas_in_sync)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def step(batch: Any) -> None:
        def replica(values: Any, wanted: Any) -> None:
            slope = tf.reduce_sum(values / SAMPLES * weight - wanted) / size
            context = tf.distribute.get_replica_context()
            weight.assign_sub(0.1 * context.all_reduce("sum", slope))

        strategy.run(replica, args=batch)

    loop = sr.ResumableLoop(
        str(folder / "checkpoints"),
        strategy,
        termination=config,
        save_every=story.left,
        weight=weight,
    )
    for epoch in loop.epochs(EPOCHS):
        data = strategy.experimental_distribute_dataset(case.data(size))
        for batch in loop.batches(data):
            story.begin_step()
            step(batch)
            for values in strategy.experimental_local_results(batch[0]):
                story.take(values.numpy())
            story.end_step(epoch, loop.step)
    return [weight.numpy()]


def train_keras(case: Case, folder: Path, story: Story, strategy: Any, config: Any) -> List[Any]:
    import keras

    class Taking(keras.layers.Layer):  # type: ignore[misc]
        def call(self, rows: Any) -> Any:
            with tf.control_dependencies([tf.numpy_function(story.take, [rows], [])]):
                return tf.identity(rows)

    class Tell(keras.callbacks.Callback):  # type: ignore[misc]
        epoch = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            story.begin_step()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            story.end_step(self.epoch, batch)

    keras.utils.set_random_seed(3)
    with strategy.scope():
        inputs = keras.Input((1,))
        model = keras.Model(inputs, keras.layers.Dense(1)(Taking()(inputs)))
        model.compile(keras.optimizers.SGD(1e-5), "mse")
    size = case.size(strategy.num_replicas_in_sync)
    backup = sr.BackupAndResume(str(folder / "checkpoints"), config, save_every=story.left)
    given = case.data(size)
    history = model.fit(
        **(given if isinstance(given, dict) else {"x": given}),
        epochs=EPOCHS,
        callbacks=[Tell(), backup],
        verbose=0,
    )
    return [*model.get_weights(), history.history["loss"]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--case", action="append", dest="cases")
    args = parser.parse_args()
    resolver = sr.SlurmClusterResolver()
    rank = resolver.cluster.task.rank if resolver.cluster.task else 0
    config = sr.termination_config(resolver)
    ours = sr.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    for name in args.cases or CASES:
        train(CASES[name], args.out / name, rank, args.steps, ours, config)
        if args.steps is None and CASES[name].size is same:
            train(CASES[name], args.out / "whole" / name, rank, None, ours, config)


def train(
    case: Case, folder: Path, rank: int, steps: Optional[int], strategy: Any, config: Any
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    story = Story(folder, rank, strategy.num_replicas_in_sync, steps)
    log, handler = logging.getLogger("slurm_resolver"), logging.FileHandler(folder / f"log.{rank}")
    log.addHandler(handler)
    try:
        how = train_loop if case.kind == "loop" else train_keras
        result = how(case, folder, story, strategy, config)
        (folder / f"result.{rank}").write_text(json.dumps([np.ravel(v).tolist() for v in result]))
    except BrokenOffError:
        pass
    log.removeHandler(handler)


if __name__ == "__main__":
    main()
