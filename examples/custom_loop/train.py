"""Trains Keras 3 layers on every node in a custom loop, and resumes from checkpoints.

With the same `--checkpoints`, the next run continues where this one stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from slurm_resolver import MultiWorkerMirroredStrategy, SlurmClusterResolver


def load_data(path: str | None) -> tuple[Any, Any, Any, Any]:
    """Returns train images, test images, train labels, test labels; pixels from 0 to 1."""
    if path is None:
        images, labels = load_digits(return_X_y=True)
        images = (images.reshape(-1, 8, 8, 1) / 16).astype("float32")
        return tuple(train_test_split(images, labels, test_size=0.2, random_state=0))
    with np.load(path) as mnist:
        images = [mnist[name][..., None].astype("float32") / 255 for name in ("x_train", "x_test")]
        labels = [mnist[name].astype("int64") for name in ("y_train", "y_test")]
        return images[0], images[1], labels[0], labels[1]


def build_model(shape: tuple[int, ...]) -> Any:
    """Returns a small convolutional net."""
    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    """Trains, and prints this task's result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="an mnist.npz (scikit-learn's digits)")
    parser.add_argument("--epochs", type=int, default=8, help="in total, with earlier runs (8)")
    parser.add_argument("--batch-size", type=int, default=32, help="of each replica (32)")
    parser.add_argument(
        "--checkpoints", default="checkpoints/custom_loop", help="folder that all nodes see"
    )
    args = parser.parse_args()

    resolver = SlurmClusterResolver()
    strategy = MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    rank = resolver.cluster.task.rank if resolver.cluster.task else 0
    chief = (resolver.task_id or 0) == 0  # worker 0, if no job has that name

    train_images, test_images, train_labels, test_labels = load_data(args.data)
    batch_size = args.batch_size * strategy.num_replicas_in_sync
    steps = len(train_images) // batch_size
    if not steps:
        parser.error(f"a batch of {batch_size} images, but there are only {len(train_images)}")
    dataset = tf.data.Dataset.from_tensor_slices((train_images, train_labels))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    # With a seed, every worker shuffles alike. Otherwise the shards would overlap.
    dataset = dataset.shuffle(len(train_images), seed=1).repeat().batch(batch_size)
    batches = iter(strategy.experimental_distribute_dataset(dataset.with_options(options)))

    with strategy.scope():
        model = build_model(train_images.shape[1:])
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)  # restoring needs the variables

    def replica_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            # The optimizer adds up the replicas' gradients: divide by the global batch size.
            loss = tf.nn.compute_average_loss(losses, global_batch_size=batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    def all_replicas_step(images: Any, labels: Any) -> Any:
        losses = strategy.run(replica_step, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    train_step = tf.function(all_replicas_step)

    epoch = tf.Variable(0, trainable=False, dtype=tf.int64)  # each task counts its own
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
    latest = tf.train.latest_checkpoint(args.checkpoints)
    if latest:
        checkpoint.restore(latest).assert_existing_objects_matched()
        print(f"rank {rank}: continues from epoch {int(epoch)}", flush=True)
    # All workers must save together; only the chief's files are kept.
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.checkpoints if chief else os.path.join(scratch, "unwanted")
        manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=3)
        speed = 0.0  # if nothing is left to train
        while int(epoch) < args.epochs:
            start, total = time.perf_counter(), 0.0
            for _ in range(steps):
                total += float(train_step(*next(batches)))
            epoch.assign_add(1)
            speed = steps * batch_size / (time.perf_counter() - start)
            manager.save(checkpoint_number=int(epoch))
            if chief:
                print(f"epoch {int(epoch)} of {args.epochs}: loss {total / steps:.4f}", flush=True)
    # All tasks hold the same variables, so each can test alone.
    guesses = np.argmax(model(test_images, training=False), axis=1)
    weights = hashlib.sha256(b"".join(array.tobytes() for array in model.get_weights()))
    print(
        f"rank {rank}: test accuracy {np.mean(guesses == test_labels):.4f}, "
        f"{speed:.0f} images/s, weights {weights.hexdigest()[:12]}",
        flush=True,
    )


if __name__ == "__main__":
    main()
