"""Trains a digit classifier asynchronously, with its variables on parameter servers.

The chief (the coordinator) schedules the steps; each worker takes one, reads the variables from the
parameter servers and sends its gradients there, at its own pace. Workers and parameter servers only
serve: `resolver.serve()` returns when the chief has ended.
"""

from __future__ import annotations

import argparse
import sys

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from slurm_resolver import ParameterServerStrategy, SlurmClusterResolver


def coordinate(resolver: SlurmClusterResolver, epochs: int, batch_size: int) -> None:
    """Trains on the workers, and prints the accuracy."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16, labels, test_size=0.2, random_state=0, stratify=labels)
    train_images, test_images, train_labels, test_labels = split

    def worker_batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        # Each worker has its own dataset; without a seed, each shuffles it differently.
        dataset = tf.data.Dataset.from_tensor_slices((train_images, train_labels))
        return dataset.shuffle(len(train_images)).batch(batch_size)

    strategy = ParameterServerStrategy(resolver)
    with strategy.scope():
        dense = keras.layers.Dense
        model = keras.Sequential([keras.Input((64,)), dense(64, activation="relu"), dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(5e-3), loss, metrics=["accuracy"])
    # In an epoch, all workers together make as many steps as the dataset has batches.
    data = strategy.distribute_datasets_from_function(worker_batches)
    model.fit(data, epochs=epochs, shuffle=False, verbose=2)  # the dataset shuffles
    # The chief reads arrays, and sends each batch to a free worker.
    _, accuracy = model.evaluate(test_images, test_labels, verbose=0)
    print(f"chief: test accuracy {accuracy:.3f}", flush=True)


def main() -> None:
    """Trains or serves, depending on the task's job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ps", type=int, default=1, help="parameter servers (1)")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="of a worker's step (32)")
    args = parser.parse_args()

    # The resolver selects the task's GPUs, so it comes before TensorFlow looks for GPUs.
    resolver = SlurmClusterResolver({"chief": 1, "ps": args.ps, "worker": -1})
    if resolver.task_type != "chief":
        sys.exit(resolver.serve())
    coordinate(resolver, args.epochs, args.batch_size)


if __name__ == "__main__":
    main()
