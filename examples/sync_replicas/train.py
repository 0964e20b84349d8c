"""Trains a convolutional net on CIFAR-10's shapes, synchronously, with a parameter server.

Between-graph replication: every worker builds the same graph, its variables are on the parameter
server, and SyncReplicasOptimizer averages the gradients of all workers for each step. The images
are scikit-learn's digits, enlarged to 32x32x3; `--data` reads CIFAR-10 as Keras downloads it.
"""

from __future__ import annotations

import argparse
import hashlib
import pickle
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from slurm_resolver import SlurmClusterResolver

v1 = tf.compat.v1


def load_data(path: str | None) -> tuple[Any, Any, Any, Any]:
    """Returns train images, test images, train labels, test labels; pixels from 0 to 1."""
    if path is None:
        images, labels = load_digits(return_X_y=True)
        images = np.kron(images.reshape(-1, 8, 8, 1) / 16, np.ones((4, 4, 3))).astype("float32")
        return tuple(train_test_split(images, labels, test_size=0.2, random_state=0))
    parts: dict[str, Any] = {}
    if Path(path).is_dir():
        for file in Path(path).rglob("*_batch*"):
            parts[file.name] = pickle.loads(file.read_bytes(), encoding="bytes")
    else:
        with tarfile.open(path) as archive:
            for member in archive:
                if "_batch" in member.name:
                    content: Any = archive.extractfile(member)
                    parts[Path(member.name).name] = pickle.load(content, encoding="bytes")
    halves = [[parts[name] for name in sorted(parts) if name.startswith("data_batch_")]]
    halves.append([parts["test_batch"]])
    rows = [np.concatenate([part[b"data"] for part in half]) for half in halves]
    images = [  # a row is 3x32x32
        (half.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) / 255).astype("float32") for half in rows
    ]
    labels = [np.concatenate([part[b"labels"] for part in half]) for half in halves]
    return images[0], images[1], labels[0], labels[1]


def variables(*shape: int) -> tuple[Any, Any]:
    """Returns the weights and the biases of a layer, which the parameter server holds."""
    with v1.device("/job:ps/task:0"):
        weights = v1.Variable(v1.truncated_normal(shape, stddev=0.1))
        return weights, v1.Variable(v1.constant(0.1, shape=shape[-1:]))


def build_net(images: Any, labels: Any, dropout: Any) -> tuple[Any, Any]:
    """Returns the cross-entropy and the accuracy of a net with two convolutions."""
    layer = images
    for shape in (5, 5, 3, 32), (5, 5, 32, 64):
        weights, biases = variables(*shape)
        layer = tf.nn.relu(tf.nn.conv2d(layer, weights, strides=1, padding="SAME") + biases)
        layer = tf.nn.max_pool2d(layer, ksize=2, strides=2, padding="SAME")
    weights, biases = variables(8 * 8 * 64, 256)
    layer = tf.nn.relu(tf.reshape(layer, [-1, 8 * 8 * 64]) @ weights + biases)
    weights, biases = variables(256, 10)
    logits = tf.nn.dropout(layer, rate=dropout) @ weights + biases
    right = tf.equal(tf.argmax(logits, axis=1), labels)
    cross_entropy = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    return cross_entropy, tf.reduce_mean(tf.cast(right, tf.float32))


class Ending(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Ends the chief's averaging thread, which would wait forever for the next gradients.

    Otherwise the session waits two minutes for that thread, and then prints its traceback.
    """

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Keeps the coordinator of the session's threads."""
        self.coordinator = coord

    def end(self, session: Any) -> None:
        """Cancels the operation that the thread waits for, at the end of the session."""
        self.coordinator.request_stop()
        session.close()


def train(server: Any, workers: int, index: Any, args: Any) -> None:
    """Trains as one of the workers; worker 0 is the chief."""
    chief = index == 0
    train_images, test_images, train_labels, test_labels = load_data(args.data)
    size, steps = args.batch_size, args.iterations // workers
    own = f"/job:worker/task:{index}"
    v1.set_random_seed(
        index
    )  # the chief initializes the variables; each worker initializes its local ones
    with v1.device(own):
        images = v1.placeholder(tf.float32, [None, 32, 32, 3])
        labels = v1.placeholder(tf.int64, [None])
        dropout = v1.placeholder_with_default(0.0, [])
        cross_entropy, accuracy = build_net(images, labels, dropout)
        with v1.device("/job:ps/task:0"):
            global_step = v1.train.get_or_create_global_step()
        optimizer = v1.train.SyncReplicasOptimizer(
            v1.train.AdamOptimizer(1e-3), replicas_to_aggregate=workers, total_num_replicas=workers
        )
        step = optimizer.minimize(cross_entropy, global_step)

    # A worker waits for a token after each gradient. By default, with one token for each worker
    # at the start, fast workers run ahead, and their gradients replace those of the others.
    sync = optimizer.make_session_run_hook(chief, num_tokens=0)
    # Without device filters, a session also waits for ended workers, and the program hangs.
    config = v1.ConfigProto(device_filters=["/job:ps", own])
    if not chief:
        # MonitoredTrainingSession would check only every 30 s whether the chief has initialized.
        with v1.Session(server.target, config=config) as session:
            while session.run(optimizer.ready_for_local_init_op).size:
                time.sleep(0.1)
    taken = 0
    with v1.train.MonitoredTrainingSession(
        server.target,
        is_chief=chief,
        hooks=[sync, v1.train.StopAtStepHook(last_step=steps), Ending()],
        config=config,
    ) as session:
        started = time.perf_counter()
        while not session.should_stop():
            batch = taken * workers + index  # batch i is for worker i mod workers
            rows = np.arange(batch * size, (batch + 1) * size) % len(train_images)
            feed = {images: train_images[rows], labels: train_labels[rows], dropout: args.dropout}
            _, right, loss = session.run([step, accuracy, cross_entropy], feed)
            taken += 1
            if chief and taken % 10 == 0:
                print(f"step {taken}: accuracy {right:.3f}, cross-entropy {loss:.4f}", flush=True)
        seconds = time.perf_counter() - started

    # The parameter server keeps the variables; a plain session finds them there.
    with v1.Session(server.target, config=config) as session:
        total, arrays = session.run([global_step, v1.trainable_variables()])
        weights = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:12]
        print(f"worker {index}: {taken} of {total} steps, weights {weights}", flush=True)
        if chief:
            results = np.zeros(2)
            for rows in np.array_split(np.arange(len(test_images)), len(test_images) // 256 + 1):
                feed = {images: test_images[rows], labels: test_labels[rows]}
                results += np.multiply(session.run([accuracy, cross_entropy], feed), len(rows))
            right, loss = results / len(test_images)
            print(f"test accuracy {right:.3f}, cross-entropy {loss:.4f}", flush=True)
            print(f"{total * workers * size / seconds:.0f} images/s", flush=True)


def main() -> None:
    """Trains or serves, depending on the task's job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="cifar-10-batches-py, or its tar.gz (digits)")
    parser.add_argument("--iterations", type=int, default=300, help="of all workers together (300)")
    parser.add_argument("--batch-size", type=int, default=64, help="of a worker's step (64)")
    parser.add_argument("--dropout", type=float, default=0.5, help="share that is dropped (0.5)")
    args = parser.parse_args()

    v1.disable_eager_execution()  # graphs and sessions, as in TensorFlow 1
    resolver = SlurmClusterResolver({"ps": 1, "worker": -1})
    cluster, job, index = resolver.cluster.jobs(), resolver.task_type, resolver.task_id
    workers = len(cluster["worker"])
    if args.iterations < workers:
        parser.error(f"--iterations {args.iterations}: fewer than the {workers} workers")
    server = v1.train.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index)
    if job == "ps":
        sys.exit(resolver.serve(server))  # returns when all workers have ended
    train(server, workers, index, args)


if __name__ == "__main__":
    main()
