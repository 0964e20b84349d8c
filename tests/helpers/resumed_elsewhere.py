"""Trains in many ways on as many workers as there are, and breaks off, until the last start.

Each rank appends to OUT/CASE/rank.N.jsonl for each step the epoch and the samples that it took. A
start ends after `--steps` steps, the last one with the training. The log goes to OUT/CASE/log.N.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import slurm_resolver as sr

SAMPLES = 100
EPOCHS = 2


def shuffled(size: int) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    rows = arrays(size)
    data = tf.data.Dataset.from_tensor_slices((rows["x"], rows["y"]))
    return data.shuffle(SAMPLES, seed=1).batch(size).with_options(options)


def arrays(size: int) -> Any:
    """Keras makes batches of them, in an order that it draws anew for each epoch."""
    values = np.arange(SAMPLES, dtype="float32")[:, np.newaxis]
    return {"x": values, "y": values / SAMPLES, "batch_size": size}


Make = Callable[[int], Any]
# how a case trains; a global batch's size on so many replicas; what makes the batches
CASES: Dict[str, Tuple[str, Callable[[int], int], Make]] = {
    "loop, same": ("loop", lambda replicas: 12, shuffled),
    "loop, grows": ("loop", lambda replicas: 4 * replicas, shuffled),
    "keras, same": ("keras", lambda replicas: 12, shuffled),
    "keras, grows": ("keras", lambda replicas: 4 * replicas, shuffled),
    "keras, arrays, grows": ("keras", lambda replicas: 4 * replicas, arrays),
}


class BrokenOffError(Exception):
    pass


class Story:
    """What this rank takes, and when it breaks off."""

    def __init__(self, folder: Path, rank: int, steps: Optional[int]) -> None:
        self.path = folder / f"rank.{rank}.jsonl"
        self.left = steps
        self.options = {"save_every": steps or 3}
        self.taken: List[int] = []

    def begin_step(self) -> None:
        self.taken = []
        if self.left == 0:
            raise BrokenOffError

    def take(self, values: Any) -> None:
        self.taken += [int(value) for value in np.ravel(values)]

    def end_step(self, epoch: int) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([epoch, self.taken]) + "\n")
        if self.left is not None:
            self.left -= 1


def train_loop(size: int, make: Make, folder: str, story: Story, strategy: Any) -> None:
    with strategy.scope():
        weight = tf.Variable(0.0)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def step(batch: Any) -> None:
        def replica(values: Any, wanted: Any) -> None:
            slope = tf.reduce_sum(values / SAMPLES * weight - wanted) / size
            context = tf.distribute.get_replica_context()
            weight.assign_sub(0.1 * context.all_reduce("sum", slope))

        strategy.run(replica, args=batch)

    loop = sr.ResumableLoop(folder, strategy, weight=weight, **story.options)
    for epoch in loop.epochs(EPOCHS):
        for batch in loop.batches(strategy.experimental_distribute_dataset(make(size))):
            story.begin_step()
            step(batch)
            for values in strategy.experimental_local_results(batch[0]):
                story.take(values.numpy())
            story.end_step(epoch)


def train_keras(size: int, make: Make, folder: str, story: Story, strategy: Any) -> None:
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
            story.end_step(self.epoch)

    keras.utils.set_random_seed(3)
    with strategy.scope():
        inputs = keras.Input((1,))
        model = keras.Model(inputs, keras.layers.Dense(1)(Taking()(inputs)))
        model.compile(keras.optimizers.SGD(1e-5), "mse")
    given = make(size)
    given = given if isinstance(given, dict) else {"x": given}
    callbacks = [Tell(), sr.BackupAndResume(folder, **story.options)]
    model.fit(**given, epochs=EPOCHS, callbacks=callbacks, verbose=0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int)
    args = parser.parse_args()
    resolver = sr.SlurmClusterResolver()
    rank = resolver.cluster.task.rank if resolver.cluster.task else 0
    strategy = sr.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    log = logging.getLogger("slurm_resolver")
    for name, (kind, size, make) in CASES.items():
        folder = args.out / name
        folder.mkdir(parents=True, exist_ok=True)
        story = Story(folder, rank, args.steps)
        handler = logging.FileHandler(folder / f"log.{rank}")
        log.addHandler(handler)
        train = train_loop if kind == "loop" else train_keras
        batch = size(strategy.num_replicas_in_sync)
        with contextlib.suppress(BrokenOffError):
            train(batch, make, str(folder / "checkpoints"), story, strategy)
        log.removeHandler(handler)


if __name__ == "__main__":
    main()
