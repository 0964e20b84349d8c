"""Trains the cookbook's perceptron asynchronously: parameter servers, workers, a Supervisor.

The digits are scikit-learn's, of 8x8 pixels. `--data mnist.npz` reads MNIST instead, the file that
Keras downloads. Every worker trains all epochs at its own pace.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from slurm_resolver import SlurmClusterResolver

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


def build_net(images: Any, labels: Any) -> tuple[Any, Any]:
    """Returns the cost and the accuracy of pixels-100-10: sigmoid, then softmax."""
    normal, zeros = v1.random_normal_initializer(seed=1), v1.zeros_initializer()
    weights1 = v1.get_variable("weights1", [images.shape[1], 100], initializer=normal)
    weights2 = v1.get_variable("weights2", [100, 10], initializer=normal)
    bias1 = v1.get_variable("bias1", [100], initializer=zeros)
    bias2 = v1.get_variable("bias2", [10], initializer=zeros)
    logits = tf.sigmoid(images @ weights1 + bias1) @ weights2 + bias2
    # The function includes the softmax: an explicit logarithm of 0 would make the cost NaN.
    cost = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    right = tf.equal(tf.argmax(logits, axis=1), labels)
    return cost, tf.reduce_mean(tf.cast(right, tf.float32))


def train(server: Any, index: int, args: argparse.Namespace) -> None:
    """Trains as one of the workers; worker 0, the chief, initializes and writes the summaries."""
    train_images, test_images, train_labels, test_labels = load_data(args.data)
    own, chief = f"/job:worker/task:{index}", index == 0
    with v1.device(v1.train.replica_device_setter(ps_tasks=args.ps, worker_device=own)):
        images = v1.placeholder(tf.float32, [None, train_images.shape[1]])
        labels = v1.placeholder(tf.int64, [None])
        cost, accuracy = build_net(images, labels)
        global_step = v1.train.get_or_create_global_step()
        optimizer = v1.train.GradientDescentOptimizer(args.learning_rate)
        train_op = optimizer.minimize(cost, global_step)
        v1.summary.scalar("cost", cost)
        v1.summary.scalar("accuracy", accuracy)
        summary_op = v1.summary.merge_all()
    supervisor = v1.train.Supervisor(
        is_chief=chief,
        recovery_wait_secs=0.2,  # how often to check for the chief; default 30 s
        global_step=global_step,
        saver=None,  # no checkpoints
        summary_op=None,  # the loop below writes the summaries
    )
    # Without device filters, a session also waits for ended workers, and the program hangs.
    config = v1.ConfigProto(device_filters=["/job:ps", own])
    random = np.random.default_rng(index)  # each worker sees the images in its own order
    batches, batch_size = len(train_images) // args.batch_size, args.batch_size
    writer = v1.summary.FileWriter(args.logs, v1.get_default_graph()) if chief else None
    with supervisor.prepare_or_wait_for_session(
        server.target, config=config, start_standard_services=False
    ) as session:
        start = printed = time.perf_counter()
        count = 0
        for epoch in range(args.epochs):
            order = random.permutation(len(train_images))
            for batch in range(batches):
                rows = order[batch * batch_size : (batch + 1) * batch_size]
                _, current, summary, step = session.run(
                    [train_op, cost, summary_op, global_step],
                    {images: train_images[rows], labels: train_labels[rows]},
                )
                count += 1
                if writer is not None:
                    writer.add_summary(summary, step)
                if count % args.frequency == 0 or batch + 1 == batches:
                    now = time.perf_counter()
                    print(
                        f"worker {index}: Step: {step}, Epoch: {epoch + 1}, "
                        f"Batch: {batch + 1} of {batches}, Cost: {current:.4f}, "
                        f"AvgTime: {1e3 * (now - printed) / count:.2f} ms",
                        flush=True,
                    )
                    printed, count = now, 0
        seconds = time.perf_counter() - start
        result = session.run(accuracy, {images: test_images, labels: test_labels})
    if writer is not None:
        writer.close()
    supervisor.stop()
    print(
        f"worker {index}: Test-Accuracy: {result:.3f} Total Time: {seconds:.2f} s "
        f"Final Cost: {current:.4f} "
        f"Throughput: {args.epochs * batches * batch_size / seconds:.0f} images/s",
        flush=True,
    )


def main() -> None:
    """Trains or serves, depending on the task's job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="an mnist.npz (scikit-learn's digits)")
    parser.add_argument("--ps", type=int, default=1, help="parameter servers (1)")
    parser.add_argument("--epochs", type=int, default=20, help="of each worker (20)")
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument(
        "--learning-rate", type=float, default=0.5, help="(0.5; 0.0005 in the recipe)"
    )
    parser.add_argument("--frequency", type=int, default=100, help="batches between reports (100)")
    parser.add_argument("--logs", default="logs", help="the chief's folder for TensorBoard (logs)")
    args = parser.parse_args()

    v1.disable_eager_execution()  # graphs and sessions, as in TensorFlow 1
    # The resolver selects the task's GPUs, so it comes before TensorFlow looks for GPUs.
    resolver = SlurmClusterResolver({"ps": args.ps, "worker": -1})
    spec, task = resolver.cluster_spec(), resolver.cluster.task
    assert task is not None  # without Slurm the resolver refuses the jobs
    server = v1.train.Server(spec, job_name=task.job, task_index=task.index, protocol="grpc")
    if task.job == "ps":
        sys.exit(resolver.serve(server))  # returns when all workers have ended
    train(server, task.index, args)


if __name__ == "__main__":
    main()
