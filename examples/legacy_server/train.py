"""Trains a digit classifier the TensorFlow 1 way: a graph in each worker, variables on the ps.

Between-graph replication: every worker builds the same graph, `replica_device_setter` puts its
variables on the parameter servers, and so all workers train the same ones, asynchronously. No
Keras, no strategy: the resolver's ClusterSpec is all that is needed.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from slurm_resolver import SlurmClusterResolver

v1 = tf.compat.v1


def token_queue(name: str, ps: int, capacity: int) -> Any:
    """Returns a queue that lives on a parameter server, the same one in every task's graph."""
    with v1.device(f"/job:ps/task:{ps}/cpu:0"):
        return v1.FIFOQueue(capacity, [tf.int32], shapes=[()], shared_name=name)


def only(*devices: str) -> Any:
    """Returns the session settings to use only these tasks.

    Otherwise a session waits for all tasks of the cluster, also for those that are done and gone.
    """
    return v1.ConfigProto(device_filters=list(devices))


def serve(server: Any, index: int) -> None:
    """Serves variables until the chief worker says that they are no longer needed."""
    # Server.join() never returns; a token in a queue does.
    token = token_queue(f"leave_{index}", index, 1).dequeue()
    with v1.Session(server.target, config=only(f"/job:ps/task:{index}")) as session:
        session.run(token)
    print(f"ps {index}: all workers are done", flush=True)


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


def train(server: Any, index: int, num_ps: int, num_workers: int, args: Any) -> None:
    """Trains as one of the workers; worker 0, the chief, prints the accuracy when all are done."""
    digits, names = load_digits(return_X_y=True)
    split = train_test_split(digits / 16, names, test_size=0.2, random_state=0, stratify=names)
    train_images, test_images, train_labels, test_labels = split
    own = f"/job:worker/task:{index}"
    with v1.device(v1.train.replica_device_setter(ps_tasks=num_ps, worker_device=own)):
        images = v1.placeholder(tf.float32, [None, 64])
        labels = v1.placeholder(tf.int64, [None])
        loss, accuracy = build_net(images, labels)
        global_step = v1.train.get_or_create_global_step()
        step = v1.train.AdamOptimizer(3e-3).minimize(loss, global_step)
    trained = token_queue("trained", 0, num_workers)
    report = trained.enqueue(index)
    reports = trained.dequeue_many(num_workers)
    leave = [token_queue(f"leave_{ps}", ps, 1).enqueue(0) for ps in range(num_ps)]

    random = np.random.default_rng(index)  # each worker sees the images in an order of its own
    config = only("/job:ps", own)
    steps = 0
    if index > 0:
        # MonitoredTrainingSession would look only every 30 s whether the chief has initialised.
        missing = v1.report_uninitialized_variables()
        with v1.Session(server.target, config=config) as session:
            while session.run(missing).size:
                time.sleep(0.1)
    with v1.train.MonitoredTrainingSession(
        server.target,
        is_chief=index == 0,  # it initialises the variables
        hooks=[v1.train.StopAtStepHook(last_step=args.steps)],  # of all workers together
        config=config,
    ) as session:
        while not session.should_stop():
            batch = random.choice(len(train_images), args.batch_size)
            session.run(step, {images: train_images[batch], labels: train_labels[batch]})
            steps += 1
    print(f"worker {index}: {steps} of {args.steps} steps", flush=True)
    # The variables live on, in the parameter servers; a plain session finds them there.
    with v1.Session(server.target, config=config) as session:
        session.run(report)
        if index == 0:
            session.run(reports)
            result = session.run(accuracy, {images: test_images, labels: test_labels})
            print(f"worker 0: test accuracy {result:.3f}", flush=True)
            session.run(leave)


def main() -> None:
    """Plays this task's part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ps", type=int, default=1, help="parameter servers (1)")
    parser.add_argument("--steps", type=int, default=1500, help="of all workers together (1500)")
    parser.add_argument("--batch-size", type=int, default=32, help="of a worker's step (32)")
    args = parser.parse_args()

    v1.disable_eager_execution()  # graphs and sessions, as in TensorFlow 1
    # Before TensorFlow looks for GPUs: this tells the task which are its own.
    resolver = SlurmClusterResolver({"ps": args.ps, "worker": -1})
    spec, task = resolver.cluster_spec(), resolver.cluster.task
    assert task is not None  # without Slurm the resolver has refused the jobs
    server = v1.train.Server(spec, job_name=task.job, task_index=task.index, protocol="grpc")
    if task.job == "ps":
        serve(server, task.index)
    else:
        train(server, task.index, args.ps, spec.num_tasks("worker"), args)


if __name__ == "__main__":
    main()
