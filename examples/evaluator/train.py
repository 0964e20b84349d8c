"""Trains a digit classifier on all tasks but one, which evaluates the checkpoints.

The workers write a checkpoint after each epoch. The evaluator is outside their cluster: it tests
each new checkpoint, and ends after that of the last epoch. If no new checkpoint appears, it ends
with an error. After a restart, the training continues from the newest checkpoint.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
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
    """Returns a small net, ready to train or to evaluate."""
    model = keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    return model


def epoch_of(checkpoint: str) -> int:
    """Returns the number at the end of a checkpoint's name: the epochs trained until then."""
    return int(checkpoint.rpartition("-")[2])


def train(resolver: SlurmClusterResolver, args: argparse.Namespace) -> None:
    """Trains with the other workers; writes a checkpoint after each epoch, and summaries."""
    strategy = MultiWorkerMirroredStrategy(resolver)
    images, _, labels, _ = load_data(args.data)
    batch_size = args.batch_size * strategy.num_replicas_in_sync
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images), seed=1)
    with strategy.scope():
        model = build_model(images.shape[1:])
        model.optimizer.build(model.trainable_variables)  # its state is in the checkpoint
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model),
        args.checkpoints,
        max_to_keep=None,
        checkpoint_name="epoch",
    )
    latest = manager.restore_or_initialize()
    done = epoch_of(latest) if latest else 0
    # All workers hold the same weights, and one of them writes them.
    saving = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, _: manager.save(epoch + 1))
    summaries = keras.callbacks.TensorBoard(args.checkpoints, write_graph=False)
    first = resolver.task_id == 0
    start, steps = time.perf_counter(), max(1, len(images) // batch_size)
    model.fit(
        dataset.repeat().batch(batch_size),
        epochs=args.epochs,
        initial_epoch=done,
        steps_per_epoch=steps,
        callbacks=[saving, summaries] if first else [],
        shuffle=False,  # the dataset shuffles
        verbose=2 if first else 0,
    )
    if first:
        speed = (args.epochs - done) * steps * batch_size / (time.perf_counter() - start)
        print(f"worker 0: trained epochs {done} to {args.epochs}, {speed:.0f} images/s", flush=True)


def evaluate(args: argparse.Namespace) -> None:
    """Reports the accuracy of each checkpoint until the last epoch's, and writes summaries."""
    _, images, _, labels = load_data(args.data)
    model = build_model(images.shape[1:])
    checkpoint = tf.train.Checkpoint(model=model)
    writer = tf.summary.create_file_writer(str(Path(args.checkpoints, "evaluation")))
    # The iterator yields the newest checkpoint: a slow evaluation skips some.
    for path in tf.train.checkpoints_iterator(args.checkpoints, timeout=args.timeout):
        checkpoint.restore(path).expect_partial()  # the optimizer's state is not used
        loss, accuracy = model.evaluate(images, labels, verbose=0)
        epoch = epoch_of(path)
        with writer.as_default(step=epoch):
            tf.summary.scalar("epoch_loss", loss)
            tf.summary.scalar("epoch_accuracy", accuracy)
        writer.flush()
        print(f"evaluator: epoch {epoch}, test accuracy {accuracy:.4f}", flush=True)
        if epoch >= args.epochs:
            return
    sys.exit(
        f"evaluator: no checkpoint of epoch {args.epochs} in {args.checkpoints}, and nothing new "
        f"for {args.timeout:g} s: the training has failed, is slower than that (--timeout), or "
        "writes to a folder that this node does not see"
    )


def main() -> None:
    """Trains or evaluates, depending on the task's job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="an mnist.npz (scikit-learn's digits)")
    parser.add_argument("--epochs", type=int, default=8, help="in total, with earlier runs (8)")
    parser.add_argument("--batch-size", type=int, default=32, help="of each replica (32)")
    parser.add_argument(
        "--checkpoints", default="checkpoints/evaluator", help="folder that all nodes see"
    )
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds to wait for a checkpoint"
    )
    args = parser.parse_args()

    resolver = SlurmClusterResolver({"evaluator": 1, "worker": -1})
    evaluate(args) if resolver.task_type == "evaluator" else train(resolver, args)


if __name__ == "__main__":
    main()
