"""Trains a digit classifier the TensorFlow 1 way: a graph in each worker, variables on the ps.

Between-graph replication: every worker builds the same graph, `replica_device_setter` puts its
variables on the parameter servers, and all workers train them asynchronously. It needs no Keras and
no strategy, only the resolver's ClusterSpec.
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


def build_net(images: Any, labels: Any) -> Any:
    """Returns the loss and the accuracy of a net with one hidden layer."""
    zeros = v1.zeros_initializer()
    hidden_weights = v1.get_variable("hidden_weights", [64, 64])
    hidden_bias = v1.get_variable("hidden_bias", [64], initializer=zeros)
    weights = v1.get_variable("weights", [64, 10])
    bias = v1.get_variable("bias", [10], initializer=zeros)
    logits = tf.nn.relu(images @ hidden_weights + hidden_bias) @ weights + bias
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    right = tf.equal(tf.argmax(logits, axis=1), labels)
    return loss, tf.reduce_mean(tf.cast(right, tf.float32))


def train(server: Any, index: int, args: Any) -> None:
    """Trains as one of the workers; worker 0, the chief, prints the accuracy."""
    digits, names = load_digits(return_X_y=True)
    split = train_test_split(digits / 16, names, test_size=0.2, random_state=0, stratify=names)
    train_images, test_images, train_labels, test_labels = split
    own = f"/job:worker/task:{index}"
    with v1.device(v1.train.replica_device_setter(ps_tasks=args.ps, worker_device=own)):
        images = v1.placeholder(tf.float32, [None, 64])
        labels = v1.placeholder(tf.int64, [None])
        loss, accuracy = build_net(images, labels)
        global_step = v1.train.get_or_create_global_step()
        step = v1.train.AdamOptimizer(3e-3).minimize(loss, global_step)

    random = np.random.default_rng(index)  # each worker sees the images in its own order
    # Without device filters, a session also waits for ended workers, and the program hangs.
    config = v1.ConfigProto(device_filters=["/job:ps", own])
    steps = 0
    if index > 0:
        # MonitoredTrainingSession would check only every 30 s whether the chief has initialized.
        missing = v1.report_uninitialized_variables()
        with v1.Session(server.target, config=config) as session:
            while session.run(missing).size:
                time.sleep(0.1)
    with v1.train.MonitoredTrainingSession(
        server.target,
        is_chief=index == 0,  # it initializes the variables
        hooks=[v1.train.StopAtStepHook(last_step=args.steps)],  # of all workers together
        config=config,
    ) as session:
        while not session.should_stop():
            batch = random.choice(len(train_images), args.batch_size)
            session.run(step, {images: train_images[batch], labels: train_labels[batch]})
            steps += 1
    print(f"worker {index}: {steps} of {args.steps} steps", flush=True)
    if index == 0:
        # The parameter servers keep the variables; a plain session finds them there.
        with v1.Session(server.target, config=config) as session:
            result = session.run(accuracy, {images: test_images, labels: test_labels})
        print(f"worker 0: test accuracy {result:.3f}", flush=True)


def main() -> None:
    """Trains or serves, depending on the task's job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ps", type=int, default=1, help="parameter servers (1)")
    parser.add_argument("--steps", type=int, default=1500, help="of all workers together (1500)")
    parser.add_argument("--batch-size", type=int, default=32, help="of a worker's step (32)")
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
