"""Trains the recipe's convolutional net on every node, and prints time, loss and accuracy.

The digits are scikit-learn's, of 8x8 pixels. `--data mnist.npz` reads MNIST instead, the file that
Keras downloads. Each task prints its result, which is the same everywhere. Rank 0 also prints it as
a line of JSON for scaling.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
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


def batches(images: Any, labels: Any, batch_size: int, *, training: bool) -> tf.data.Dataset:
    """Returns the batches of all workers together; the strategy gives each worker its rows."""
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    if training:
        dataset = dataset.shuffle(
            len(images), seed=1
        ).repeat()  # the seed gives every node the same order
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.batch(batch_size).with_options(options)


def build_model(shape: tuple[int, ...]) -> Any:
    """Returns the recipe's net and optimizer."""
    model = keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    """Trains, and prints this task's result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="an mnist.npz (scikit-learn's digits)")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64, help="of each replica (64)")
    args = parser.parse_args()

    resolver = SlurmClusterResolver()  # the recipe writes TF_CONFIG by hand
    strategy = MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    task, tasks = resolver.cluster.task, resolver.cluster.tasks
    rank, node = (task.rank, task.node) if task else (0, "this machine")

    train_images, test_images, train_labels, test_labels = load_data(args.data)
    batch_size = args.batch_size * strategy.num_replicas_in_sync
    steps = len(train_images) // batch_size  # fewer on more nodes: an epoch has the same images
    if not steps:
        parser.error(f"a batch of {batch_size} images, but there are only {len(train_images)}")
    with strategy.scope():
        model = build_model(train_images.shape[1:])
    times = [time.perf_counter()]
    clock = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: times.append(time.perf_counter())
    )
    history = model.fit(
        batches(train_images, train_labels, batch_size, training=True),
        epochs=args.epochs,
        steps_per_epoch=steps,
        callbacks=[clock],
        shuffle=False,  # the dataset shuffles
        verbose=2 if rank == 0 else 0,
    ).history
    test = batches(test_images, test_labels, batch_size, training=False)
    _, accuracy = model.evaluate(test, verbose=0)
    weights = hashlib.sha256(b"".join(array.tobytes() for array in model.get_weights()))
    print(
        f"rank {rank} on {node}: loss {history['loss'][-1]:.4f}, "
        f"accuracy {history['accuracy'][-1]:.4f}, test accuracy {accuracy:.4f}, "
        f"weights {weights.hexdigest()[:12]}, GPUs {','.join(resolver.gpus or ()) or 'none'}",
        flush=True,
    )
    if rank == 0:
        result = {
            "nodes": len({one.node for one in tasks}) or 1,
            "tasks": len(tasks) or 1,
            "seconds": times[-1] - times[0],
            # This is the last epoch's speed, because the first epoch also traces the graph.
            "images_per_second": steps * batch_size / (times[-1] - times[-2]),
            "loss": history["loss"][-1],
            "accuracy": history["accuracy"][-1],
            "test_accuracy": accuracy,
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
