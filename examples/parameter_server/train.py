"""Trains a digit classifier whose variables live on parameter servers, asynchronously.

The chief (the coordinator) hands out the steps; each worker takes one, reads the variables from
the parameter servers and sends its gradients there, at its own pace. Workers and parameter
servers only serve. `tf.distribute.Server.join()` never returns, so something else must tell them
when to go: here a TCP connection that each of them holds to the chief, its lifeline.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from typing import Any, List

import tensorflow as tf
import tf_keras as keras  # Keras 3 cannot fit() under this strategy; Keras 2 can
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from slurm_resolver import SlurmClusterResolver

START_SECONDS = 120  # srun starts all tasks at once, but a cold file system may be slow
FAREWELL = b"done"


def accept_lifelines(port: int, count: int) -> List[socket.socket]:
    """Returns a connection from each of the servers, once all of them are up; called by the chief.

    The chief's port is free until TensorFlow starts its own server there. That can be while these
    connections last: only a second *listening* socket would be in its way.
    """
    lifelines: List[socket.socket] = []
    with socket.create_server(("", port), backlog=count) as listener:
        listener.settimeout(START_SECONDS)
        while len(lifelines) < count:
            try:
                lifelines.append(listener.accept()[0])
            except socket.timeout:
                sys.exit(f"chief: only {len(lifelines)} of {count} servers came; giving up")
    return lifelines


def serve(spec: tf.train.ClusterSpec, job: str, index: int) -> int:
    """Serves until the chief is gone, and returns this task's exit status: 0 if it had finished."""
    server = tf.distribute.Server(spec, job_name=job, task_index=index, protocol="grpc")
    host, _, port = spec.task_address("chief", 0).rpartition(":")
    lifeline, deadline = None, time.monotonic() + START_SECONDS
    while lifeline is None:
        try:
            lifeline = socket.create_connection((host.strip("[]"), int(port)), timeout=5)
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"{job} {index}: no chief at {host}:{port} ({error}); giving up")
            time.sleep(0.2)
    # However a process ends, the kernel closes its connections, and the other side reads the end
    # of the file. Only a node that vanishes sends nothing; then Slurm ends the job.
    lifeline.settimeout(None)
    try:
        finished = lifeline.makefile("rb").read() == FAREWELL
    except OSError:
        finished = False
    del server  # it had to live until here
    print(f"{job} {index}: the chief has {'finished' if finished else 'failed'}", flush=True)
    return 0 if finished else 1


def coordinate(resolver: SlurmClusterResolver, epochs: int, batch_size: int) -> None:
    """Trains on the workers, and prints the accuracy."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16, labels, test_size=0.2, random_state=0, stratify=labels)
    train_images, test_images, train_labels, test_labels = split

    def worker_batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        # Each worker has a dataset of its own; without a seed each shuffles it another way.
        dataset = tf.data.Dataset.from_tensor_slices((train_images, train_labels))
        return dataset.shuffle(len(train_images)).repeat().batch(batch_size)

    def build_model() -> Any:
        dense = keras.layers.Dense
        model = keras.Sequential([keras.Input((64,)), dense(64, activation="relu"), dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(5e-3), loss, metrics=["accuracy"])
        return model

    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = build_model()
    model.fit(
        keras.utils.experimental.DatasetCreator(worker_batches),
        epochs=epochs,
        steps_per_epoch=len(train_images) // batch_size,  # of all workers together
        verbose=2,
    )
    # A copy of the model in this process: its evaluation is exact, and needs no worker.
    copy = build_model()
    copy.set_weights(model.get_weights())
    _, accuracy = copy.evaluate(test_images, test_labels, verbose=0)
    print(f"chief: test accuracy {accuracy:.3f}", flush=True)


def main() -> int:
    """Plays this task's part, and returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ps", type=int, default=1, help="parameter servers (1)")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="of a worker's step (32)")
    args = parser.parse_args()

    # A server that is gone is an error at once, not something to wait for.
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    # Before TensorFlow looks for GPUs: this tells the task which are its own.
    resolver = SlurmClusterResolver({"chief": 1, "ps": args.ps, "worker": -1})
    task = resolver.cluster.task
    assert task is not None  # without Slurm the resolver has refused the jobs
    if task.job != "chief":
        return serve(resolver.cluster_spec(), task.job, task.index)
    port = int(task.address.rpartition(":")[2])
    lifelines = accept_lifelines(port, len(resolver.cluster.tasks) - 1)
    coordinate(resolver, args.epochs, args.batch_size)
    for lifeline in lifelines:  # only now: a chief that failed says nothing
        lifeline.sendall(FAREWELL)
    return 0  # the servers wait for the end of this process: TensorFlow still talks to them


if __name__ == "__main__":
    sys.exit(main())
