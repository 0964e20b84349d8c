"""Measures how long it takes to resolve a large step.

The baseline is a `tf.train.ClusterSpec` of an existing dictionary, which TensorFlow needs in any
case. All subjects run in turn in every round, so that other programs on the machine disturb all of
them alike. The tables show the median ratio to the baseline, the median CPU time, and two peaks of
memory: "MB allocated" is the peak of Python's allocator, and "MB resident" is the growth of the
process.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import time
import tracemalloc
from typing import Any, Callable

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import report
import tensorflow as tf
from measured_code import measured_code

import slurm_resolver as sr

PER_NODE = 8
MAX_RANGE = 65_536  # Slurm refuses a range of more hosts


def task_variables(tasks: int) -> dict[str, str]:
    """Returns the variables of a task in a step with eight tasks on each node."""
    nodes = tasks // PER_NODE
    ranges = [
        f"n[{first}-{min(first + MAX_RANGE - 1, nodes)}]"
        for first in range(1, nodes + 1, MAX_RANGE)
    ]
    return {
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "0",
        "SLURMD_NODENAME": "n1",
        "SLURM_GTIDS": ",".join(map(str, range(PER_NODE))),
        "SLURM_JOB_ID": "42",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(nodes * PER_NODE),
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NODELIST": ",".join(ranges),
        "SLURM_STEP_TASKS_PER_NODE": f"{PER_NODE}(x{nodes})",
        "SLURM_STEP_RESV_PORTS": "23001-23009",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    }


def use_this_resolver(**keywords: Any) -> Any:
    """Calls everything that a strategy calls before it starts a server."""
    resolver = sr.SlurmClusterResolver(auto_set_gpu=False, **keywords)
    return resolver, resolver.cluster_spec(), resolver.get_task_info(), resolver.master()


def use_tensorflows_resolver() -> Any:
    """Calls the same methods of TensorFlow's own resolver."""
    resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
        gpus_per_node=PER_NODE, gpus_per_task=1, auto_set_gpu=False
    )
    spec = resolver.cluster_spec()
    return resolver, spec, resolver.get_task_info(), resolver.master()


def write_json(cluster: sr.Cluster) -> None:
    """Writes the cluster as ``slurm-resolver show --json`` does."""
    with open(os.devnull, "w", encoding="utf-8") as file:
        json.dump(cluster.to_dict(), file)


def cpu_seconds(work: Callable[[], Any]) -> float:
    """Returns the CPU time of the work."""
    gc.collect()  # the work must not pay for earlier garbage
    start = time.process_time()
    result = work()
    taken = time.process_time() - start
    del result
    return taken


def allocated_mb(work: Callable[[], Any]) -> float:
    """Returns the peak of Python's allocator during the work."""
    gc.collect()
    tracemalloc.start()
    result = work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del result
    return peak / 1e6


def resident_mb(size: int, name: str) -> float:
    """Returns how much the peak of the resident memory grows, measured in a child process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        work = subjects(size)[name]
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")  # resets the peak
        before = _peak_resident_mb()
        result = work()
        os.write(writing, str(_peak_resident_mb() - before).encode())
        del result
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading, "rb") as file:
        return float(file.read())


def _peak_resident_mb() -> float:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1e3


def subjects(size: int) -> dict[str, Callable[[], Any]]:
    """Sets the variables of a task, and returns what is compared, the baseline first."""
    environ = task_variables(size)
    os.environ.update(environ)
    nodes = range(1, size // PER_NODE + 1)
    jobs = {"worker": [f"n{node}:{port}" for node in nodes for port in range(23001, 23009)]}
    return {
        "ClusterSpec of a ready dictionary": lambda: tf.train.ClusterSpec(jobs),
        "this resolver": use_this_resolver,
        "this resolver, workers by rank": lambda: use_this_resolver(worker_order="rank"),
        "this resolver, 1 ps in 100": lambda: use_this_resolver(
            jobs={"ps": size // 100, "worker": -1}
        ),
        "resolve() alone": lambda: sr.resolve(environ=environ),
        "resolve() and its JSON": lambda: write_json(sr.resolve(environ=environ)),
        "TensorFlow's resolver": use_tensorflows_resolver,
    }


def main() -> None:
    """Publishes a table for each size, and a plot of all sizes."""
    parser = report.make_parser(__doc__, counts=[10**power for power in range(2, 7)])
    args = parser.parse_args()
    gc.freeze()  # gc.collect() would visit all of TensorFlow's objects, and empty the caches
    sizes = [size // PER_NODE * PER_NODE for size in args.counts]
    # Measured first: the children must not inherit memory that this process has used and freed.
    resident = {(size, name): resident_mb(size, name) for size in sizes for name in subjects(size)}
    parts = []
    medians: dict[str, list[float]] = {}
    for size in sizes:
        compared = subjects(size)
        rounds = 21 if size <= 10_000 else 11 if size <= 100_000 else 3
        taken: dict[str, list[float]] = {name: [] for name in compared}
        for _ in range(rounds):
            for name, work in compared.items():
                taken[name].append(1000 * cpu_seconds(work))
        baseline, *_ = taken.values()
        rows = []
        for name, work in compared.items():
            ratio = statistics.median(own / base for own, base in zip(taken[name], baseline))
            median = statistics.median(taken[name])
            medians.setdefault(name, []).append(median)
            memory = f"{allocated_mb(work):.1f}", f"{resident[size, name]:.1f}"
            rows.append((name, f"{ratio:.2f}", f"{median:.2f}", *memory))
        headings = [f"{size:,} tasks on {size // PER_NODE:,} nodes", "ratio", "CPU ms"]
        parts.append(report.table([*headings, "MB allocated", "MB resident"], rows))
    if len(sizes) > 1:
        lines = {name: (sizes, times) for name, times in medians.items()}
        labels = ("tasks", "CPU time (ms)")
        parts.append(
            report.plot("resolution", lines, labels, lambda axes: axes.loglog(), write=args.write)
        )
    parts.append(f"<!-- measured code: {measured_code()} -->")
    report.publish("resolution", "\n\n".join(parts), write=args.write)


if __name__ == "__main__":
    main()
