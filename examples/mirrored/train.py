"""Trains a digit classifier synchronously on every task of a Slurm step.

Each task is a worker with a copy of the model. In every step, each trains on its share of the
batch, and the gradients are averaged over all workers. The copies therefore stay equal to the last
bit. Without Slurm, the same script trains alone.
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from slurm_resolver import MultiWorkerMirroredStrategy, SlurmClusterResolver


def load_data() -> Any:
    """Returns train images, test images, train labels, test labels; 8x8 pixels from 0 to 1."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    # The seed is fixed, because all tasks must use the same test images.
    return train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)


def batches(images: Any, labels: Any, batch_size: int, *, training: bool) -> tf.data.Dataset:
    """Returns the batches of all workers together; the strategy gives each worker its rows."""
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    if training:
        # With a seed, every run has the same order. In a run, the workers always do.
        dataset = dataset.shuffle(len(images), seed=1).repeat()
    options = tf.data.Options()
    # This package's strategy divides the rows by default, too; TensorFlow's own may divide files.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.batch(batch_size).with_options(options)


def build_model() -> Any:
    """Returns a small convolutional net, ready to train."""
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
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
    parser.add_argument("--batch-size", type=int, default=32, help="of each replica (32)")
    args = parser.parse_args()

    # The resolver selects the task's GPUs, so it comes before TensorFlow looks for GPUs.
    resolver = SlurmClusterResolver()
    # Without Slurm the cluster is empty, and the strategy needs no network.
    strategy = MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    task = resolver.cluster.task
    rank = task.rank if task else 0
    index = task.index if task else 0

    train_images, test_images, train_labels, test_labels = load_data()
    # A replica is a GPU, or a worker without one. Larger batches mean fewer steps in an epoch.
    batch_size = args.batch_size * strategy.num_replicas_in_sync
    if batch_size > len(train_images):
        parser.error(f"a batch of {batch_size} images, but there are only {len(train_images)}")
    with strategy.scope():
        model = build_model()
    model.fit(
        batches(train_images, train_labels, batch_size, training=True),
        epochs=args.epochs,
        # Needed because the batches never end, so that no worker runs out of batches early.
        steps_per_epoch=len(train_images) // batch_size,
        shuffle=False,  # the dataset shuffles
        verbose=2 if rank == 0 else 0,  # one task prints for all
    )
    # All workers take part here as well, each with its share of the test images.
    test = batches(test_images, test_labels, batch_size, training=False)
    _, accuracy = model.evaluate(test, verbose=0)
    weights = hashlib.sha256(b"".join(array.tobytes() for array in model.get_weights()))
    print(
        f"rank {rank} (worker {index} of {len(resolver.cluster.tasks) or 1}): "
        f"test accuracy {accuracy:.3f}, weights {weights.hexdigest()[:12]}",
        flush=True,
    )


if __name__ == "__main__":
    main()
