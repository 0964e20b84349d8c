"""Trains on the GPUs of some nodes, with the variables on parameter servers on other nodes.

The chief (the coordinator) schedules the steps of Keras' `fit`; a free worker takes the next one,
reads the variables from the parameter servers and sends its gradients there. In a heterogeneous
step, the tasks of component 0, on the nodes with GPUs, are workers; those of component 1 are the
chief and the parameter servers. The same script runs in a plain step.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from slurm_resolver import ParameterServerStrategy, SlurmClusterResolver

# The component of each job in train.sbatch. The chief only schedules, and needs no GPU.
HET_GROUPS = {"worker": 0, "chief": 1, "ps": 1}


def load_data(path: str | None) -> tuple[Any, Any, Any, Any]:
    """Returns train images, test images, train labels, test labels; pixels from 0 to 255."""
    if path is None:
        images, labels = load_digits(return_X_y=True)
        images = (images.reshape(-1, 8, 8, 1) * 255 / 16).astype("uint8")
        return tuple(train_test_split(images, labels, test_size=0.2, random_state=0))
    with np.load(path) as mnist:
        images = [mnist[name][..., None] for name in ("x_train", "x_test")]
        labels = [mnist[name].astype("int64") for name in ("y_train", "y_test")]
        return images[0], images[1], labels[0], labels[1]


def build_model(shape: tuple[int, ...]) -> Any:
    """Returns a small convolutional net, ready to train."""
    model = keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    return model


def report_placement(model: Any) -> None:
    """Prints how many weights each parameter server holds."""
    weights: dict[int, int] = {}
    for variable in model.trainable_variables:
        server = tf.DeviceSpec.from_string(variable.value.device).task
        weights[server] = weights.get(server, 0) + int(np.prod(variable.shape))
    shares = ", ".join(f"ps {server} {count}" for server, count in sorted(weights.items()))
    print(f"chief: weights on {shares}", flush=True)


class Speed(keras.callbacks.Callback):  # type: ignore[misc]
    """Prints the trained images per second after each epoch."""

    def __init__(self, images: int) -> None:
        super().__init__()
        self.images = images  # of an epoch
        self.speed = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Starts the clock."""
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Stops the clock after all steps of the epoch."""
        self.speed = self.images / (time.perf_counter() - self.start)
        name, loss = f"epoch {epoch + 1} of {self.params['epochs']}", (logs or {})["loss"]
        print(f"{name}: loss {loss:.4f}, {self.speed:.0f} images/s", flush=True)


def coordinate(resolver: SlurmClusterResolver, args: argparse.Namespace) -> None:
    """Trains on the workers, and prints speed and accuracy."""
    train_images, test_images, train_labels, test_labels = load_data(args.data)
    strategy = ParameterServerStrategy(resolver)
    with strategy.scope():
        model = build_model(train_images.shape[1:])
    report_placement(model)

    def worker_batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        # Each worker has its own dataset; without a seed, each shuffles it differently. The
        # images are sent in the dataset's graph, for which they are small enough as bytes.
        dataset = tf.data.Dataset.from_tensor_slices((train_images, train_labels))
        return dataset.shuffle(len(train_images)).batch(args.batch_size, drop_remainder=True)

    # In an epoch, all workers together make as many steps as the dataset has batches.
    data = strategy.distribute_datasets_from_function(worker_batches)
    speed = Speed(len(train_images) // args.batch_size * args.batch_size)
    model.fit(data, epochs=args.epochs, callbacks=[speed], shuffle=False, verbose=0)
    _, accuracy = model.evaluate(test_images, test_labels, batch_size=256, verbose=0)
    print(f"chief: test accuracy {accuracy:.4f}, {speed.speed:.0f} images/s", flush=True)


def main() -> None:
    """Trains or serves, depending on the task's job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="an mnist.npz (scikit-learn's digits)")
    parser.add_argument("--ps", type=int, default=1, help="parameter servers (1)")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="of a worker's step (32)")
    args = parser.parse_args()

    # The resolver selects the task's GPUs, so it comes before TensorFlow looks for GPUs.
    resolver = SlurmClusterResolver(
        {"chief": 1, "ps": args.ps, "worker": -1},
        # Without components, het_groups is an error.
        het_groups=HET_GROUPS if "SLURM_HET_SIZE" in os.environ else None,
    )
    task = resolver.cluster.task
    assert task is not None  # with jobs, a start outside Slurm is an error above
    gpus = ",".join(resolver.gpus or ()) or "none"
    print(f"{task.job} {task.index} (rank {task.rank} on {task.node}): GPUs {gpus}", flush=True)
    if task.job != "chief":
        sys.exit(resolver.serve())
    coordinate(resolver, args)


if __name__ == "__main__":
    main()
