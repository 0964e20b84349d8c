"""Trains a dense net asynchronously: a master, workers, and the variables on several ps.

This is TensorFlow 1's between-graph replication, as in the recipe. The recipe's "master" is the
chief: a worker that also initializes, counts steps, saves checkpoints and writes summaries. The
digits are scikit-learn's, of 8x8 pixels. `--data mnist.npz` reads MNIST instead, the file that
Keras downloads. At the end, the chief prints a line of JSON for ps_ratio.py.
"""

from __future__ import annotations

import argparse
import json
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
    """Returns train images, test images, train labels, test labels; pixels from 0 to 1."""
    if path is None:
        images, labels = load_digits(return_X_y=True)
        images = (images / 16).astype("float32")
        return tuple(train_test_split(images, labels, test_size=0.2, random_state=0))
    with np.load(path) as mnist:
        images = [mnist[name].astype("float32") / 255 for name in ("x_train", "x_test")]
        images = [part.reshape(len(part), -1) for part in images]
        labels = [mnist[name].astype("int64") for name in ("y_train", "y_test")]
        return images[0], images[1], labels[0], labels[1]


def build_net(images: Any, labels: Any, width: int) -> tuple[Any, Any]:
    """Returns the loss and the accuracy of a net with two hidden layers."""
    values = images
    for name, units in (("hidden1", width), ("hidden2", width), ("logits", 10)):
        with v1.variable_scope(name):
            weights = v1.get_variable("weights", [values.shape[1], units])
            bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
            values = tf.matmul(values, weights) + bias
            if name != "logits":
                values = tf.nn.relu(values)
    loss = v1.losses.sparse_softmax_cross_entropy(labels, values)
    right = tf.equal(tf.argmax(values, axis=1), labels)
    return loss, tf.reduce_mean(tf.cast(right, tf.float32))


def saved(folder: str | None, name: str) -> int:
    """Returns a number in the newest checkpoint; 0 without a checkpoint."""
    if folder is None or tf.train.latest_checkpoint(folder) is None:
        return 0
    return int(tf.train.load_variable(folder, name))


def train(resolver: SlurmClusterResolver, server: Any, args: argparse.Namespace) -> None:
    """Trains as the chief or a worker; the chief initializes, saves, and prints the result."""
    spec, task, tasks = resolver.cluster_spec(), resolver.cluster.task, resolver.cluster.tasks
    assert task is not None
    own, chief = f"/job:{task.job}/task:{task.index}", task.job == "chief"
    train_images, test_images, train_labels, test_labels = load_data(args.data)
    # Variables go to the ps in turn. Large ones are divided, so that every ps holds a part.
    cut = v1.min_max_variable_partitioner(args.ps, min_slice_size=16 << 10)
    with v1.device(v1.train.replica_device_setter(cluster=spec, worker_device=own)):
        images = v1.placeholder(tf.float32, [None, train_images.shape[1]])
        labels = v1.placeholder(tf.int64, [None])
        with v1.variable_scope("net", partitioner=cut):
            loss, accuracy = build_net(images, labels, args.width)
        global_step = v1.train.get_or_create_global_step()
        step_once = v1.train.AdamOptimizer(1e-3).minimize(loss, global_step)
        # Counts the workers that have made a step, in all runs. The clock starts once all have.
        zero = v1.zeros_initializer()
        present = v1.get_variable("present", [], tf.int64, zero, trainable=False)
        arrive = v1.assign_add(present, 1)
        # In no collection: only the chief initializes it, at its first step.
        begun = v1.get_variable("begun", [], tf.int64, zero, trainable=False, collections=[])
        is_begun = v1.is_variable_initialized(begun)
        # MonitoredTrainingSession's default saver lets each ps write a part on its own node.
        saver = v1.train.Saver()
    v1.summary.scalar("loss", loss)
    v1.summary.scalar("accuracy", accuracy)

    # Without device filters, a session also waits for ended workers, and the program hangs.
    config = v1.ConfigProto(device_filters=["/job:ps", own])
    if not chief:
        # MonitoredTrainingSession would check only every 30 s whether the chief has initialized.
        missing = v1.report_uninitialized_variables()
        with v1.Session(server.target, config=config) as session:
            while session.run(missing).size:
                time.sleep(0.1)
    first, before = saved(args.checkpoints, "global_step"), saved(args.checkpoints, "present")
    if chief and first:
        print(f"chief: continues from step {first}", flush=True)
    trainers = len(tasks) - args.ps
    steps, here, since = 0, 0, None
    with v1.train.MonitoredTrainingSession(
        server.target,
        is_chief=chief,  # only the chief's session initializes, saves and writes summaries
        checkpoint_dir=args.checkpoints,
        save_checkpoint_steps=args.save_checkpoint_steps,
        save_summaries_steps=args.save_summaries_steps,
        log_step_count_steps=args.save_summaries_steps,  # steps per second, also as a summary
        scaffold=v1.train.Scaffold(saver=saver),
        hooks=[v1.train.StopAtStepHook(last_step=args.steps)],  # of all workers together
        config=config,
    ) as session:

        def run(fetches: Any) -> Any:
            """Runs without the hooks, which would need a feed."""
            return session.run_step_fn(lambda step_context: step_context.session.run(fetches))

        # A short training may otherwise end before the chief, which reports it, takes part.
        now, chief_trains = run([global_step, is_begun])
        while not chief and not chief_trains and now < args.steps:
            time.sleep(0.1)
            now, chief_trains = run([global_step, is_begun])
        # Each worker sees the images in its own order, and in another order after a restart.
        random = np.random.default_rng([task.rank, now])
        begin, shown = time.perf_counter(), now
        while now < args.steps and not session.should_stop():
            batch = random.choice(len(train_images), args.batch_size)
            feed = {images: train_images[batch], labels: train_labels[batch]}
            fetched = [step_once, loss, accuracy, global_step, present]
            _, cost, right, now, here = session.run(fetched, feed)
            steps += 1
            if steps == 1:
                run([arrive, begun.initializer] if chief else arrive)
            if since is None and here - before == trainers:
                since = (time.perf_counter(), now)
            if chief and now - shown >= args.save_summaries_steps:
                shown = now
                progress = f"loss {cost:.4f}, accuracy {right:.3f}"
                print(f"step {now} of {args.steps}: {progress}", flush=True)
        end = (time.perf_counter(), now)
    print(f"{task.job} {task.index} on {task.node}: {steps} steps", flush=True)
    if not chief:
        return
    # The ps keep the variables; a plain session finds them there.
    with v1.Session(server.target, config=config) as session:
        feed = {images: test_images, labels: test_labels}
        test_loss, test_accuracy, last = session.run([loss, accuracy, global_step], feed)
    report = {
        "ps": args.ps,
        "workers": trainers,  # the chief as well
        "nodes": len({one.node for one in tasks}),
        "steps": int(last) - first,
        "seconds": end[0] - begin,
        "test_loss": float(test_loss),
        "test_accuracy": float(test_accuracy),
    }
    speed = f"too few steps for a speed: the last of {trainers} workers came too late"
    if since is not None and end[1] > since[1]:
        steps_per_second = float(end[1] - since[1]) / (end[0] - since[0])
        report["steps_per_second"] = steps_per_second
        report["images_per_second"] = steps_per_second * args.batch_size
        speed = (
            "all workers together {steps_per_second:.0f} steps/s, {images_per_second:.0f} images/s"
        )
    print(f"chief: test accuracy {test_accuracy:.4f}, {speed.format(**report)}", flush=True)
    print(json.dumps(report), flush=True)


def main() -> None:
    """Trains or serves, depending on the task's job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="an mnist.npz (scikit-learn's digits)")
    parser.add_argument("--ps", type=int, default=2, help="parameter servers (2)")
    parser.add_argument("--steps", type=int, default=2000, help="of all workers together (2000)")
    parser.add_argument("--batch-size", type=int, default=64, help="of a worker's step (64)")
    parser.add_argument("--width", type=int, default=256, help="units of a hidden layer (256)")
    parser.add_argument("--checkpoints", help="folder to save to and to resume from (none)")
    parser.add_argument("--save-checkpoint-steps", type=int, default=500, help="(500)")
    parser.add_argument("--save-summaries-steps", type=int, default=100, help="(100)")
    args = parser.parse_args()

    v1.disable_eager_execution()  # graphs and sessions, as in TensorFlow 1
    # By default, a chief beside ps gets no GPU, because it often only coordinates. Here it trains.
    resolver = SlurmClusterResolver(
        {"chief": 1, "ps": args.ps, "worker": -1}, gpu_jobs=["chief", "worker"]
    )
    resolver.wait_until_ready(timeout=120)
    spec, job, index = resolver.cluster_spec(), resolver.task_type, resolver.task_id
    server = v1.train.Server(spec, job_name=job, task_index=index, protocol="grpc")
    if job == "ps":
        sys.exit(resolver.serve(server))  # returns when the chief and all workers have ended
    train(resolver, server, args)


if __name__ == "__main__":
    main()
