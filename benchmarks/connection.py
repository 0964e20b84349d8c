"""Measures what TensorFlow's own connection of the workers costs, as their number grows.

The workers do nothing else: they create a strategy, and add up one number. They are forked from one
process that has imported TensorFlow, so that each needs only 65 MiB of its own. All of them share
this machine's CPUs: on nodes of their own, they would only wait for worker 0, whose work grows with
their number because it runs TensorFlow's coordination service.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import statistics
import time
from typing import NamedTuple

import report


class Cost(NamedTuple):
    """What a worker has measured, in seconds."""

    began: float
    ended: float
    cpu: float


def work(index: int, addresses: list[str]) -> Cost:
    """Connects as a worker, and adds up a number."""
    import tensorflow as tf

    cluster = {"worker": addresses}
    task = {"type": "worker", "index": index}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    began = time.monotonic()
    cpu = time.process_time()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    total = strategy.reduce("SUM", tf.constant(1.0), axis=None)
    assert float(total) == len(addresses)
    return Cost(began, time.monotonic(), time.process_time() - cpu)


def free_addresses(count: int) -> list[str]:
    """Returns addresses of this machine whose ports are free, and stay so."""
    addresses: list[str] = []
    for port in itertools.count(20_000):  # the kernel gives connections ports from 32,768 on
        if len(addresses) == count:
            break
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            addresses.append(f"127.0.0.1:{port}")
    return addresses


def measure(workers: int) -> list[Cost]:
    """Returns what each of that many workers has measured."""
    addresses = free_addresses(workers)
    reader, writer = os.pipe()
    release, held = os.pipe()  # a worker that ended early would be missed by the others
    for index in range(workers):
        if os.fork():
            continue
        os.close(held)
        try:
            os.write(writer, (json.dumps([index, *work(index, addresses)]) + "\n").encode())
            os.read(release, 1)
        finally:
            os._exit(0)
    os.close(writer)
    os.close(release)
    with open(reader) as lines:
        found = sorted(json.loads(lines.readline() or "null") or [] for _ in range(workers))
    os.close(held)
    for _ in range(workers):
        os.wait()
    if not found[0]:
        raise SystemExit(f"a worker of {workers} has failed: see its message above")
    return [Cost(*numbers) for _, *numbers in found]


def typical(workers: int, rounds: int) -> tuple[float, float, float]:
    """Returns the medians of the rounds: the seconds from the start of the last worker to the end,
    and the CPU seconds of worker 0 and of another worker.
    """
    results = []
    for _ in range(rounds):
        costs = measure(workers)
        seconds = max(cost.ended for cost in costs) - max(cost.began for cost in costs)
        other = statistics.median(cost.cpu for cost in costs[1:])
        results.append((seconds, costs[0].cpu, other))
    seconds, leader, other = map(statistics.median, zip(*results))
    return seconds, leader, other


def main() -> None:
    """Publishes a table."""
    parser = report.make_parser(__doc__, counts=[8, 16, 32, 64, 128], of="workers", rounds=3)
    args = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import tensorflow  # noqa: F401  (before the fork, so that the workers share its pages)

    results = [typical(workers, args.rounds) for workers in args.counts]
    rows = [
        (workers, f"{seconds:.2f}", f"{1000 * leader:.0f}", f"{1000 * other:.0f}")
        for workers, (seconds, leader, other) in zip(args.counts, results)
    ]
    headings = ["workers", "seconds", "worker 0: CPU ms", "another worker: CPU ms"]
    report.publish("connection", report.table(headings, rows), write=args.write)
    if len(rows) > 1:
        first, last = args.counts[0], args.counts[-1]
        leaders = [leader for _, leader, _ in results]
        each = (leaders[-1] - leaders[0]) / (last - first)
        text = (
            f"With {first} workers, this takes {results[0][0]:.1f} s; with {last}, "
            f"{results[-1][0]:.1f} s. Each further worker takes {1000 * each:.1f} ms\n"
            "of worker 0's CPU time; at this rate, 1,000 workers take "
            f"{leaders[-1] + each * (1000 - last):.1f} s of it."
        )
        report.publish("connection", text, write=args.write, page=report.GUIDE)


if __name__ == "__main__":
    main()
