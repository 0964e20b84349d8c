"""In-graph replication: one client builds the graph for all workers; the other tasks only serve.

The variables are pinned to the parameter servers, and each worker has a copy of the layers, its
tower. The client trains asynchronously by default. With `--sync`, it averages the gradients.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
import time
from typing import Any, NamedTuple

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


class Tower(NamedTuple):
    """A worker's copy of the layers."""

    images: Any
    labels: Any
    loss: Any
    accuracy: Any


def build_variables(pixels: int, ps: int) -> list[Any]:
    """Returns weights and biases of a net with one hidden layer, distributed over the ps tasks."""
    devices = itertools.cycle(f"/job:ps/task:{index}" for index in range(ps))
    variables = []
    for name, shape in (("hidden", [pixels, 100]), ("output", [100, 10])):
        with tf.device(next(devices)):
            variables.append(v1.get_variable(f"{name}_weights", shape))
            zeros = v1.zeros_initializer()
            variables.append(v1.get_variable(f"{name}_bias", shape[1:], initializer=zeros))
    return variables


def build_tower(index: int, variables: list[Any]) -> Tower:
    """Returns the layers on one worker; the variables come over the network."""
    hidden_weights, hidden_bias, weights, bias = variables
    with tf.device(f"/job:worker/task:{index}"):
        images = v1.placeholder(tf.float32, [None, hidden_weights.shape[0]])
        labels = v1.placeholder(tf.int64, [None])
        logits = tf.nn.relu(images @ hidden_weights + hidden_bias) @ weights + bias
        loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
        right = tf.equal(tf.argmax(logits, axis=1), labels)
        return Tower(images, labels, loss, tf.reduce_mean(tf.cast(right, tf.float32)))


def build_step(group: list[Tower], optimizer: Any, variables: list[Any], global_step: Any) -> Any:
    """Returns an update by the average of the towers' gradients; running it returns its number."""
    gradients = []
    for tower in group:
        # On the tower's task, not on the variables'.
        pairs = optimizer.compute_gradients(tower.loss, variables, colocate_gradients_with_ops=True)
        gradients.append([gradient for gradient, _ in pairs])
    average = []
    for variable, *same in zip(variables, *gradients):
        with tf.device(variable.device):  # not through the client
            average.append(tf.add_n(same) / len(group))
    update = optimizer.apply_gradients(list(zip(average, variables)), global_step)
    with tf.control_dependencies([update]):
        return global_step.read_value()


def train(target: str, ps: int, workers: int, args: argparse.Namespace) -> None:
    """Trains as the client of all other tasks."""
    train_images, test_images, train_labels, test_labels = load_data(args.data)
    with tf.device("/job:ps/task:0"):
        global_step = v1.train.get_or_create_global_step()
    variables = build_variables(train_images.shape[1], ps)
    towers = [build_tower(index, variables) for index in range(workers)]
    # With --sync, all towers together make an update. Otherwise each tower makes its own.
    groups = [towers] if args.sync else [[tower] for tower in towers]
    optimizer = v1.train.AdamOptimizer(3e-3)
    updates = [build_step(group, optimizer, variables, global_step) for group in groups]
    times = [0] * len(groups)
    coordinator = v1.train.Coordinator()

    def run(number: int, session: Any) -> None:
        """Makes updates with one group until all groups together have made enough."""
        random = np.random.default_rng(number)
        with coordinator.stop_on_exception():
            while not coordinator.should_stop():
                feed: dict[Any, Any] = {}
                for tower in groups[number]:
                    batch = random.choice(len(train_images), args.batch_size)
                    feed[tower.images] = train_images[batch]
                    feed[tower.labels] = train_labels[batch]
                step, loss = session.run([updates[number], groups[number][0].loss], feed)
                times[number] += 1
                if times[number] % 200 == 0:
                    print(f"tower {number}: step {step}, loss {loss:.4f}", flush=True)
                if step >= args.steps:
                    coordinator.request_stop()

    # One session for all threads, which a MonitoredTrainingSession does not support.
    with v1.Session(target) as session:
        session.run(v1.global_variables_initializer())
        start = time.perf_counter()
        threads = [
            threading.Thread(target=run, args=(number, session), daemon=True)
            for number in range(len(groups))
        ]
        for thread in threads:
            thread.start()
        coordinator.join(threads)  # raises a thread's exception
        seconds = time.perf_counter() - start
        test = {towers[0].images: test_images, towers[0].labels: test_labels}
        result = session.run(towers[0].accuracy, test)
    images = args.batch_size * sum(times) * len(groups[0])
    kind = "synchronous" if args.sync else "asynchronous"
    print(
        f"{kind}, {workers} workers: updates {'+'.join(map(str, times))}, "
        f"test accuracy {result:.3f}, {images / seconds:.0f} images/s",
        flush=True,
    )


def main() -> None:
    """Trains or serves, depending on the task's job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sync", action="store_true", help="average the towers' gradients")
    parser.add_argument("--ps", type=int, default=1, help="parameter servers (1)")
    parser.add_argument("--data", metavar="PATH", help="an mnist.npz (scikit-learn's digits)")
    parser.add_argument("--steps", type=int, default=1000, help="updates of the variables (1000)")
    parser.add_argument("--batch-size", type=int, default=32, help="of a tower (32)")
    args = parser.parse_args()

    v1.disable_eager_execution()
    # The resolver selects the task's GPUs, so it comes before TensorFlow looks for GPUs.
    resolver = SlurmClusterResolver({"chief": 1, "ps": args.ps, "worker": -1})
    if resolver.task_type != "chief":
        sys.exit(resolver.serve())  # returns when the client has ended
    spec = resolver.cluster_spec()
    server = v1.train.Server(spec, job_name="chief", task_index=0, protocol="grpc")
    train(server.target, args.ps, spec.num_tasks("worker"), args)


if __name__ == "__main__":
    main()
