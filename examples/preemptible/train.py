"""Trains as examples/mirrored does, and survives every preemption of the job.

On a signal to any task, all tasks save the same step and the job is requeued. The next start
continues with the next step. The final weights are those of an uninterrupted run. Without Slurm the
same script trains alone: end it with `kill -USR1`, and start it again.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from typing import Any

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

from slurm_resolver import (
    BackupAndResume,
    MultiWorkerMirroredStrategy,
    SlurmClusterResolver,
    termination_config,
)


def batches(batch_size: int) -> tf.data.Dataset:
    """Returns the batches of all workers together, without end, and always in the same order."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 64).astype("float32") / 16
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    # With a seed, a resumed run draws the same batches again.
    dataset = dataset.shuffle(len(images), seed=1).repeat().batch(batch_size)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)


def build_model() -> Any:
    """Returns a small net, ready to train, always with the same initial weights."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    """Trains, and prints this task's result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20, help="steps of an epoch (20)")
    parser.add_argument("--batch-size", type=int, default=32, help="of each replica (32)")
    parser.add_argument(
        "--checkpoints", default="checkpoints/preemptible", help="folder, shared by all nodes"
    )
    parser.add_argument("--pause", type=float, default=0, help="seconds to wait after each step")
    args = parser.parse_args()

    resolver = SlurmClusterResolver()
    # This call comes early, because SIGUSR1 ends the process before it.
    termination = termination_config(resolver)
    strategy = MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    task = resolver.cluster.task
    rank = task.rank if task else 0

    with strategy.scope():
        model = build_model()
    # The periodic save is for crashes, which send no signal: they lose at most this many steps.
    backup = BackupAndResume(args.checkpoints, termination, save_every=50)
    pause = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: time.sleep(args.pause)
    )
    model.fit(
        batches(args.batch_size * strategy.num_replicas_in_sync),
        epochs=args.epochs,
        steps_per_epoch=args.steps,
        callbacks=[backup, pause] if args.pause else [backup],
        verbose=2 if rank == 0 else 0,
    )
    weights = hashlib.sha256(b"".join(array.tobytes() for array in model.get_weights()))
    print(f"rank {rank}: trained, weights {weights.hexdigest()[:12]}", flush=True)


if __name__ == "__main__":
    main()
