"""Between-graph replication: every worker builds its own graph of the same variables.

The program knows its cluster only from the flags. It trains asynchronously by default. With
`--sync`, a SyncReplicasOptimizer averages the workers' gradients.
"""

from __future__ import annotations

import argparse
import threading
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


def build_net(images: Any, labels: Any) -> tuple[Any, Any]:
    """Returns the loss and the accuracy of a net with one hidden layer."""
    zeros = v1.zeros_initializer()
    hidden_weights = v1.get_variable("hidden_weights", [images.shape[1], 100])
    hidden_bias = v1.get_variable("hidden_bias", [100], initializer=zeros)
    weights = v1.get_variable("weights", [100, 10])
    bias = v1.get_variable("bias", [10], initializer=zeros)
    logits = tf.nn.relu(images @ hidden_weights + hidden_bias) @ weights + bias
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    right = tf.equal(tf.argmax(logits, axis=1), labels)
    return loss, tf.reduce_mean(tf.cast(right, tf.float32))


def await_chief(target: str, config: Any) -> None:
    """Waits until the chief has initialized the variables.

    MonitoredTrainingSession also waits, but checks only every 30 s.
    """
    missing = v1.report_uninitialized_variables(v1.global_variables())
    with v1.Session(target, config=config) as session:
        while session.run(missing).size:
            time.sleep(0.1)


def end_averaging_quietly() -> None:
    """Hides the traceback of the chief's averaging thread, which the end of the session stops."""
    shown = threading.excepthook

    def show(failure: Any) -> None:
        if not isinstance(failure.exc_value, tf.errors.CancelledError):
            shown(failure)

    threading.excepthook = show


def train(server: Any, cluster: Any, args: argparse.Namespace) -> None:
    """Trains as one of the workers; worker 0, the chief, prints the accuracy in the end."""
    train_images, test_images, train_labels, test_labels = load_data(args.data)
    index, chief = args.task_index, args.task_index == 0
    own = f"/job:worker/task:{index}"
    with v1.device(v1.train.replica_device_setter(worker_device=own, cluster=cluster)):
        images = v1.placeholder(tf.float32, [None, train_images.shape[1]])
        labels = v1.placeholder(tf.int64, [None])
        loss, accuracy = build_net(images, labels)
        global_step = v1.train.get_or_create_global_step()
        optimizer = v1.train.AdamOptimizer(args.learning_rate)
        hooks = [v1.train.StopAtStepHook(last_step=args.train_steps)]
        if args.sync:
            workers = cluster.num_tasks("worker")
            optimizer = v1.train.SyncReplicasOptimizer(optimizer, workers, workers)
            # The others end with the chief, which closes the queue that they wait for. If one of
            # them left first, the chief could wait forever for its gradients.
            hooks = hooks if chief else []
            # Without spare tokens no worker runs ahead, and no gradient arrives too late.
            hooks.append(optimizer.make_session_run_hook(chief, num_tokens=0))
            end_averaging_quietly()
        train_op = optimizer.minimize(loss, global_step=global_step)

    # Without device filters, a session also waits for ended workers, and the program hangs.
    config = v1.ConfigProto(device_filters=["/job:ps", own])
    random = np.random.default_rng(index)
    if not chief:
        await_chief(server.target, config)
    steps = 0
    with v1.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=chief,
        hooks=hooks,
        config=config,
        stop_grace_period_secs=1,  # the averaging thread still waits for gradients
    ) as session:
        start = now = time.perf_counter()
        while not session.should_stop():
            batch = random.choice(len(train_images), args.batch_size)
            feed = {images: train_images[batch], labels: train_labels[batch]}
            _, current, step = session.run([train_op, loss, global_step], feed)
            steps, now = steps + 1, time.perf_counter()
            if steps % 200 == 0:
                print(f"worker {index}: step {step}, loss {current:.4f}", flush=True)
    rate = steps * args.batch_size / (now - start) if steps else 0
    print(
        f"worker {index}: {steps} steps for {args.train_steps} updates, {rate:.0f} images/s",
        flush=True,
    )
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
    parser.add_argument("--sync", action="store_true", help="average the workers' gradients")
    parser.add_argument("--data", metavar="PATH", help="an mnist.npz (scikit-learn's digits)")
    parser.add_argument("--train_steps", type=int, default=1000, help="updates (1000)")
    parser.add_argument("--batch_size", type=int, default=32, help="of a worker (32)")
    parser.add_argument("--learning_rate", type=float, default=3e-3)
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
