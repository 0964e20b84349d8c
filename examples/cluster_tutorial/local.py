"""A cluster of two tasks in one process: variables on one, layers on the other.

This is the first part of the tutorial. It runs on one machine without Slurm.
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
    """Returns train images, test images, train labels, test labels; a row of pixels each."""
    if path is None:
        images, labels = load_digits(return_X_y=True)
        return tuple(train_test_split(images / 16, labels, test_size=0.2, random_state=0))
    with np.load(path) as mnist:
        images = [mnist[name] / 255 for name in ("x_train", "x_test")]
        rows = [image.reshape(len(image), -1) for image in images]
        return rows[0], rows[1], mnist["y_train"], mnist["y_test"]


def hello() -> None:
    """Runs a graph in a server that is its own cluster, on a port that the kernel chooses."""
    server = v1.train.Server.create_local_server()
    with v1.Session(server.target) as session:
        print(session.run(tf.constant("Hello, distributed TensorFlow!")).decode(), flush=True)


def train(target: str, args: argparse.Namespace) -> None:
    """Trains a net with one hidden layer on both tasks, and prints what ran on which."""
    train_images, test_images, train_labels, test_labels = load_data(args.data)
    pixels = train_images.shape[1]
    with tf.device("/job:local/task:0"):
        hidden_weights = v1.get_variable("hidden_weights", [pixels, 100])
        hidden_bias = v1.get_variable("hidden_bias", [100], initializer=v1.zeros_initializer())
        weights = v1.get_variable("weights", [100, 10])
        bias = v1.get_variable("bias", [10], initializer=v1.zeros_initializer())
    with tf.device("/job:local/task:1"):
        images = v1.placeholder(tf.float32, [None, pixels])
        labels = v1.placeholder(tf.int64, [None])
        hidden = tf.nn.relu(images @ hidden_weights + hidden_bias, name="hidden")
        logits = tf.add(hidden @ weights, bias, name="logits")
        loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
        right = tf.equal(tf.argmax(logits, axis=1), labels)
        accuracy = tf.reduce_mean(tf.cast(right, tf.float32))
    # The operations that update a variable run on its task.
    train_op = v1.train.AdamOptimizer(3e-3).minimize(loss)

    random = np.random.default_rng(0)
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    trace = v1.RunMetadata()
    with v1.Session(target) as session:
        session.run(v1.global_variables_initializer())
        start = time.perf_counter()
        for step in range(1, args.steps + 1):
            batch = random.choice(len(train_images), args.batch_size)
            feed = {images: train_images[batch], labels: train_labels[batch]}
            _, current = session.run([train_op, loss], feed)
            if step % 100 == 0 or step == args.steps:
                print(f"step {step} of {args.steps}: loss {current:.4f}", flush=True)
        seconds = time.perf_counter() - start
        test = {images: test_images, labels: test_labels}
        result = session.run(accuracy, test, options, trace)
    for device in trace.step_stats.dev_stats:
        for node in device.node_stats:
            if node.node_name in ("hidden_weights", "weights", "hidden", "logits"):
                print(f"{node.node_name} on {device.device}")
    rate = args.steps * args.batch_size / seconds
    print(f"test accuracy {result:.3f}, {rate:.0f} images/s", flush=True)


def main() -> None:
    """Starts the servers of both tasks, and trains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--hosts",
        default="localhost:2222,localhost:2223",
        help="addresses of the two tasks (the tutorial's: localhost:2222,localhost:2223)",
    )
    parser.add_argument("--data", metavar="PATH", help="an mnist.npz (scikit-learn's digits)")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    if args.hosts.count(",") != 1:
        parser.error(f"--hosts {args.hosts}: expected two addresses with a comma between them")

    v1.disable_eager_execution()
    hello()
    cluster = tf.train.ClusterSpec({"local": args.hosts.split(",")})
    # The tutorial starts each server in its own shell. In one process, they are just as separate.
    servers = [v1.train.Server(cluster, job_name="local", task_index=task) for task in range(2)]
    train(servers[0].target, args)


if __name__ == "__main__":
    main()
