"""Trains two or more workers with the `fit` of Keras 3, on pictures that it draws.

It needs no download, and no package but TensorFlow. Each picture shows a ring, a square or a cross
in noise, and the net learns which. Without Slurm and `slurm-resolver run`, the same script trains
alone.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from slurm_resolver import MultiWorkerMirroredStrategy, SlurmClusterResolver

SIZE = 16  # pixels of a picture's edge
SHAPES = 3  # a ring, a square, a cross


def draw(pictures: int, seed: int) -> Any:
    """Returns pictures and their shapes; the seed makes them the same in every worker."""
    random = np.random.default_rng(seed)
    shapes = random.integers(SHAPES, size=pictures)
    radius, y, x = (
        random.uniform(*limits, (pictures, 1, 1)) for limits in ((3, 5), (5, 10), (5, 10))
    )
    rows, columns = np.mgrid[:SIZE, :SIZE]
    down, right = np.abs(rows - y), np.abs(columns - x)
    # the distance of each pixel from the center, as each shape defines it
    ring, square = np.hypot(down, right), np.maximum(down, right)
    cross = np.where(square <= radius, radius + np.minimum(down, right), SIZE)
    distance = np.choose(shapes[:, None, None], [ring, square, cross])
    images = (np.abs(distance - radius) < 0.8) + random.normal(0, 0.3, distance.shape)
    return images.astype("float32")[..., None], shapes


def build_model() -> Any:
    """Returns a small convolutional net, ready to train."""
    model = keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 1)),
            keras.layers.Conv2D(8, 5, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(SHAPES, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def checksums(strategy: Any, model: Any) -> Any:
    """Returns a number for each worker's copy of the weights: the same for the same weights."""
    number = zlib.crc32(b"".join(array.tobytes() for array in model.get_weights()))
    own = tf.function(strategy.run)(lambda: tf.constant([number], tf.int64))
    return set(strategy.gather(own, axis=0).numpy().tolist())


def main() -> None:
    """Trains, and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    # The resolver selects the task's GPUs, so it comes before TensorFlow looks for GPUs.
    resolver = SlurmClusterResolver()
    strategy = MultiWorkerMirroredStrategy(cluster_resolver=resolver)

    workers = len(resolver.cluster.tasks) or 1
    first = resolver.cluster.task is None or resolver.cluster.task.rank == 0
    keras.utils.set_random_seed(1)  # every run starts from the same weights
    with strategy.scope():
        model = build_model()
    # The global batch size: each worker trains on its share of every batch.
    batch_size = 32 * strategy.num_replicas_in_sync
    # One worker prints for all.
    model.fit(*draw(3200, 1), batch_size, args.epochs, verbose=2 if first else 0)
    _, accuracy = model.evaluate(*draw(800, 2), batch_size, verbose=0)

    if len(checksums(strategy, model)) > 1:
        sys.exit("the workers hold different weights")
    if first:
        several = "both" if workers == 2 else f"all {workers}"
        end = f"{several} workers hold the same weights" if workers > 1 else "trained alone"
        print(f"{end}; accuracy {accuracy:.2f}", flush=True)


if __name__ == "__main__":
    main()
