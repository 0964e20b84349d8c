"""Trains a digit classifier on the workers in TF_CONFIG.

It follows TensorFlow's guide "Multi-worker training with Keras": the program knows its cluster only
from this variable, and any launcher may set it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from typing import Any

# Keras 3's fit() fails under this strategy. Set this variable before importing TensorFlow.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def load_data(path: str | None) -> tuple[Any, Any, Any, Any]:
    """Returns train images, train labels, test images, test labels; pixels from 0 to 1."""
    if path is not None:  # mnist.npz
        with np.load(path) as data:
            arrays = [data[name] for name in ("x_train", "y_train", "x_test", "y_test")]
        train_images, train_labels, test_images, test_labels = arrays
        brightest = 255
    else:
        pixels, digits = load_digits(return_X_y=True)
        train_images, test_images, train_labels, test_labels = train_test_split(
            pixels.reshape(-1, 8, 8), digits, test_size=0.2, random_state=0, stratify=digits
        )
        brightest = 16
    train_images, test_images = (
        images[..., np.newaxis].astype("float32") / brightest
        for images in (train_images, test_images)
    )
    return train_images, train_labels.astype("int64"), test_images, test_labels.astype("int64")


def build_model(shape: tuple[int, ...]) -> Any:
    """Returns a small convolutional net, ready to train."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Conv2D(32, 3, activation="relu", input_shape=shape),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.Adam(2e-3),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def is_chief(cluster: Any, task: Any) -> bool:
    """Returns whether this worker writes the files that are kept."""
    if task["type"] == "chief":
        return True
    return bool(task["type"] == "worker" and task["index"] == 0 and "chief" not in cluster)


def own_path(path: str, chief: bool, index: int) -> str:
    """Returns the path for the chief, and a temporary one for another worker."""
    if chief:
        return path
    folder, name = os.path.split(path)
    return os.path.join(folder, f"worker-{index}-temporary", name)


def save(model: Any, output: str, chief: bool, index: int) -> None:
    """Saves the model and a checkpoint; all workers must write, and only the chief's files stay."""
    model_path = own_path(os.path.join(output, "model"), chief, index)
    model.save(model_path)
    checkpoint_path = own_path(os.path.join(output, "checkpoints"), chief, index)
    checkpoint = tf.train.Checkpoint(model=model)
    tf.train.CheckpointManager(checkpoint, checkpoint_path, max_to_keep=1).save()
    if not chief:
        tf.io.gfile.rmtree(os.path.dirname(model_path))


def main() -> None:
    """Trains, and prints this worker's result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", metavar="PATH", help="mnist.npz; default: scikit-learn's digits")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker (32)")
    parser.add_argument("--output", metavar="FOLDER", help="save model and checkpoint there")
    args = parser.parse_args()

    tf_config = json.loads(os.environ["TF_CONFIG"])
    cluster, task = tf_config["cluster"], tf_config["task"]
    num_workers = len(cluster["worker"]) + len(cluster.get("chief", []))
    chief = is_chief(cluster, task)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    train_images, train_labels, test_images, test_labels = load_data(args.data)
    batch_size = args.batch_size * num_workers
    # TensorFlow gives each worker its shard of every batch.
    train = tf.data.Dataset.from_tensor_slices((train_images, train_labels))
    train = train.shuffle(len(train_images), seed=1).repeat().batch(batch_size)
    test = tf.data.Dataset.from_tensor_slices((test_images, test_labels)).batch(batch_size)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    train, test = train.with_options(options), test.with_options(options)

    with strategy.scope():
        model = build_model(train_images.shape[1:])
    model.fit(
        train,
        epochs=args.epochs,
        steps_per_epoch=len(train_images) // batch_size,
        verbose=2 if chief else 0,
    )
    _, accuracy = model.evaluate(test, verbose=0)
    if args.output is not None:
        save(model, args.output, chief, task["index"])
    weights = hashlib.sha256(b"".join(array.tobytes() for array in model.get_weights()))
    print(
        f"{task['type']} {task['index']} of {num_workers}: "
        f"test accuracy {accuracy:.3f}, weights {weights.hexdigest()[:12]}",
        flush=True,
    )


if __name__ == "__main__":
    main()
