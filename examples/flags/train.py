"""Trains a digit classifier with the parameter servers in its flags.

This is a between-graph program of TensorFlow 1. Every task gets the same lists of hosts, and its
own job and index. The program knows its cluster only from the flags.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

v1 = tf.compat.v1


def load_data(path: str | None) -> tuple[Any, Any, Any, Any]:
    """Returns train images, train labels, test images, test labels; a row of pixels each."""
    if path is not None:  # mnist.npz
        with np.load(path) as data:
            train_images, test_images = data["x_train"] / 255, data["x_test"] / 255
            train_labels, test_labels = data["y_train"], data["y_test"]
    else:
        pixels, digits = load_digits(return_X_y=True)
        train_images, test_images, train_labels, test_labels = train_test_split(
            pixels / 16, digits, test_size=0.2, random_state=0, stratify=digits
        )
    rows = (images.reshape(len(images), -1) for images in (train_images, test_images))
    train_images, test_images = rows
    return train_images, train_labels, test_images, test_labels


def build_net(images: Any, labels: Any, pixels: int) -> tuple[Any, Any]:
    """Returns the loss and the accuracy of a net with one hidden layer of 100 units."""
    normal = v1.truncated_normal_initializer(stddev=pixels**-0.5)
    zeros = v1.zeros_initializer()
    hidden_weights = v1.get_variable("hidden_weights", [pixels, 100], initializer=normal)
    hidden_bias = v1.get_variable("hidden_bias", [100], initializer=zeros)
    weights = v1.get_variable("weights", [100, 10], initializer=normal)
    bias = v1.get_variable("bias", [10], initializer=zeros)
    logits = tf.nn.relu(images @ hidden_weights + hidden_bias) @ weights + bias
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    right = tf.equal(tf.argmax(logits, axis=1), labels)
    return loss, tf.reduce_mean(tf.cast(right, tf.float32))


def await_chief(target: str, config: Any) -> None:
    """Waits until the chief has initialized the variables.

    MonitoredTrainingSession also waits, but checks only every 30 s.
    """
    missing = v1.report_uninitialized_variables()
    with v1.Session(target, config=config) as session:
        while session.run(missing).size:
            time.sleep(0.1)


def train(server: Any, cluster: Any, args: argparse.Namespace) -> None:
    """Trains as one of the workers; worker 0, the chief, prints the accuracy in the end."""
    train_images, train_labels, test_images, test_labels = load_data(args.data)
    chief = args.task_index == 0
    own = f"/job:worker/task:{args.task_index}"
    with v1.device(v1.train.replica_device_setter(worker_device=own, cluster=cluster)):
        images = v1.placeholder(tf.float32, [None, train_images.shape[1]])
        labels = v1.placeholder(tf.int64, [None])
        loss, accuracy = build_net(images, labels, train_images.shape[1])
        global_step = v1.train.get_or_create_global_step()
        optimizer = v1.train.AdagradOptimizer(args.learning_rate)
        train_op = optimizer.minimize(loss, global_step=global_step)

    # Without device filters, a session also waits for ended workers, and the program hangs.
    config = v1.ConfigProto(device_filters=["/job:ps", own])
    random = np.random.default_rng(args.task_index)
    if not chief:
        await_chief(server.target, config)
    steps = 0
    with v1.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=chief,
        hooks=[v1.train.StopAtStepHook(last_step=args.train_steps)],
        config=config,
    ) as session:
        while not session.should_stop():
            batch = random.choice(len(train_images), args.batch_size)
            session.run(train_op, {images: train_images[batch], labels: train_labels[batch]})
            steps += 1
    print(f"worker {args.task_index}: {steps} of {args.train_steps} steps", flush=True)
    if chief:
        with v1.Session(server.target, config=config) as session:
            result = session.run(accuracy, {images: test_images, labels: test_labels})
        print(f"test accuracy {result:.3f}", flush=True)


def main() -> None:
    """Serves variables or trains, depending on the flags."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ps_hosts", required=True, help="host:port,…")
    parser.add_argument("--worker_hosts", required=True, help="host:port,…")
    parser.add_argument("--job_name", required=True, choices=("ps", "worker"))
    parser.add_argument("--task_index", required=True, type=int)
    parser.add_argument("--data", metavar="PATH", help="mnist.npz; default: scikit-learn's digits")
    parser.add_argument("--train_steps", type=int, default=2000, help="of all workers (2000)")
    parser.add_argument("--batch_size", type=int, default=100)
    parser.add_argument("--learning_rate", type=float, default=0.05)
    args = parser.parse_args()

    v1.disable_eager_execution()
    cluster = tf.train.ClusterSpec(
        {"ps": args.ps_hosts.split(","), "worker": args.worker_hosts.split(",")}
    )
    server = v1.train.Server(cluster, job_name=args.job_name, task_index=args.task_index)
    if args.job_name == "ps":
        server.join()  # never returns
    else:
        train(server, cluster, args)


if __name__ == "__main__":
    main()
