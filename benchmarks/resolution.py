"""How long the resolution of a large step takes, against what TensorFlow needs for its cluster.

The floor is `tf.train.ClusterSpec` made from a dictionary that is there already. What is compared
runs in turn, round after round, so that what else the machine does meets all alike. Told are the
medians of the rounds' ratios to the floor, the median CPU times, and the memory at its peak: what
Python's allocator held, and by how much the process grew.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import time
import tracemalloc
from typing import Any, Callable, Dict, List

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import report
import tensorflow as tf

import slurm_resolver as sr

PER_NODE = 8
SIZES = [10**power for power in range(2, 7)]


def task(tasks: int) -> Dict[str, str]:
    """The variables of a task of a step with eight tasks on each node."""
    nodes = tasks // PER_NODE
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
        "SLURM_STEP_NODELIST": ",".join(  # no range of Slurm's has more than 65,536 hosts
            f"n[{first}-{min(first + 65_535, nodes)}]" for first in range(1, nodes + 1, 65_536)
        ),
        "SLURM_STEP_TASKS_PER_NODE": f"{PER_NODE}(x{nodes})",
        "SLURM_STEP_RESV_PORTS": "23001-23009",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    }


def ours(**keywords: Any) -> Any:
    """All that a strategy asks of the resolver before it starts a server."""
    resolver = sr.SlurmClusterResolver(auto_set_gpu=False, **keywords)
    return resolver, resolver.cluster_spec(), resolver.get_task_info(), resolver.master()


def write(cluster: sr.Cluster) -> None:
    """What ``slurm-resolver show --json`` does with it."""
    with open(os.devnull, "w", encoding="utf-8") as file:
        json.dump(cluster.to_dict(), file)


def tensorflows() -> Any:
    """The same of TensorFlow's own resolver."""
    resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
        gpus_per_node=PER_NODE, gpus_per_task=1, auto_set_gpu=False
    )
    spec = resolver.cluster_spec()
    return resolver, spec, resolver.get_task_info(), resolver.master()


def seconds(work: Callable[[], Any]) -> float:
    """Returns the CPU time that the work takes, with nothing to be collected from before."""
    gc.collect()
    start = time.process_time()
    result = work()
    taken = time.process_time() - start
    del result
    return taken


def traced(work: Callable[[], Any]) -> float:
    """Returns the most MB that Python's own allocator held at a time."""
    gc.collect()
    tracemalloc.start()
    result = work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del result
    return peak / 1e6


def resident(size: int, name: str) -> float:
    """Returns by how many MB the peak of the resident memory grows, in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        work = works(size)[name]
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")  # the peak starts anew
        before = _peak()
        result = work()
        os.write(writing, str(_peak() - before).encode())
        del result
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading, "rb") as file:
        return float(file.read())


def _peak() -> float:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1e3


def works(size: int) -> Dict[str, Callable[[], Any]]:
    """Returns what is compared, the floor first."""
    environ = task(size)
    os.environ.update(environ)
    nodes = range(1, size // PER_NODE + 1)
    ready = {"worker": [f"n{node}:{port}" for node in nodes for port in range(23001, 23009)]}
    return {
        "ClusterSpec of a ready dictionary": lambda: tf.train.ClusterSpec(ready),
        "this resolver": ours,
        "this resolver, workers by rank": lambda: ours(worker_order="rank"),
        "this resolver, 1 ps in 100": lambda: ours(jobs={"ps": size // 100, "worker": -1}),
        "resolve() alone": lambda: sr.resolve(environ=environ),
        "resolve() and its JSON": lambda: write(sr.resolve(environ=environ)),
        "TensorFlow's resolver": tensorflows,
    }


def main() -> None:
    """Publishes a table a size, and a plot of all sizes."""
    parser = report.make_parser(__doc__)
    parser.add_argument("sizes", type=int, nargs="*", default=SIZES, metavar="TASKS")
    args = parser.parse_args()
    sizes = [size // PER_NODE * PER_NODE for size in args.sizes]
    # in processes that branch off before anything has used and freed memory
    grown = {(size, name): resident(size, name) for size in sizes for name in works(size)}
    parts = []
    times: Dict[str, List[float]] = {}
    for size in sizes:
        compared = works(size)
        rounds = 21 if size <= 10_000 else 11 if size <= 100_000 else 3
        taken: Dict[str, List[float]] = {name: [] for name in compared}
        for _ in range(rounds):
            for name, work in compared.items():
                taken[name].append(seconds(work))
        floor, *_ = taken.values()
        rows = []
        for name, work in compared.items():
            ratio = statistics.median(own / other for own, other in zip(taken[name], floor))
            median = statistics.median(taken[name])
            times.setdefault(name, []).append(median)
            memory = f"{traced(work):.1f}", f"{grown[size, name]:.1f}"
            rows.append((name, f"{ratio:.2f}", f"{1000 * median:.2f}", *memory))
        headings = [f"{size:,} tasks on {size // PER_NODE:,} nodes", "ratio", "CPU ms"]
        parts.append(report.table([*headings, "MB of Python's", "MB grown"], rows))
    lines = {name: (sizes, [1000 * one for one in median]) for name, median in times.items()}
    if len(sizes) > 1:
        labels = ("tasks", "CPU time (ms)")
        image = report.plot(
            "resolution", lines, labels, lambda axes: axes.loglog(), write=args.write
        )
        parts.append(image)
    report.publish("resolution", "\n\n".join(parts), write=args.write)


if __name__ == "__main__":
    main()
