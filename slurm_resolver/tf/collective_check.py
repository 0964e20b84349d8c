"""`slurm-resolver check --collective`: one real step and one real all-reduce in every task.

    python -m slurm_resolver.tf.collective_check OPTIONS

The process of `check` becomes this one. The tasks that train make the strategy, measure a small
step that each computes alone, and an all-reduce of 64 MB. OPTIONS is JSON: the resolver's options,
and whether to print JSON.
"""

from __future__ import annotations

import glob
import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

_MEGABYTES = 64
_SECONDS = 0.7  # of a measurement
_MEASUREMENTS = 5  # of a step, of which the fastest counts: another program may disturb the others
_MEET_SECONDS = 120.0  # a first step on a GPU compiles its kernels
_JOBS = ("chief", "worker")
_FAR_SLOWER = 2.0  # times the median of all tasks
_FAST_INTERFACES = ("/sys/class/net/hsn*", "/sys/class/infiniband/*")


class Measured(NamedTuple):
    """What a task has measured."""

    device: str  # "GPU" or "CPU"
    steps: Sequence[float]  # milliseconds of the step that it computes alone, by measurement
    reduce: float  # milliseconds of the all-reduce
    transport: str  # NCCL's network, such as "IB"; "" without NCCL or within a node
    fast: Sequence[str]  # interfaces of the node that are faster than its sockets


def main() -> int:
    """Measures, and prints the table in one task; returns 1 if there is a warning, else 0."""
    options = json.loads(sys.argv[1])
    folder = tempfile.TemporaryDirectory(prefix="slurm_resolver-nccl-")
    log = os.path.join(folder.name, "nccl")
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=log)
    import tensorflow as tf

    # Threads that wait for each other take the CPUs from tasks of the same node.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    from slurm_resolver.coordination.client import connect
    from slurm_resolver.tf.keras.mirrored import MultiWorkerMirroredStrategy
    from slurm_resolver.tf.resolver import SlurmClusterResolver

    resolver = SlurmClusterResolver(**options["resolver"])
    cluster = resolver.cluster
    client = connect(cluster.service) if cluster.service and len(cluster.tasks) > 1 else None
    others = [task.rank for task in cluster.tasks if task.job not in _JOBS]

    def gather(purpose: str, value: Any) -> List[Any]:
        if client is None:
            return [value]
        told = client.gather(purpose, value, _MEET_SECONDS, without=others)
        return [one for one in told if one is not None]

    warnings = []
    if cluster.task is None or cluster.task.job in _JOBS:
        local_rank = cluster.task.local_rank if cluster.task else 0
        measured = _measure(MultiWorkerMirroredStrategy(resolver), gather, log, local_rank)
        ranks = [task.rank for task in cluster.tasks if task.job in _JOBS] or [0]
        told = gather("what was measured", measured)
        by_rank = {rank: Measured(*one) for rank, one in zip(ranks, told)}
        warnings = find_warnings(by_rank, cluster.name_of)
        if cluster.task is None or cluster.task.rank == ranks[0]:
            print(as_json(by_rank, warnings) if options["json"] else as_table(by_rank, warnings))
    folder.cleanup()
    if client is not None:
        # The service may run in a task that does not train, and must not end before the others.
        client.gather("the end of the measurement", None, None)
    return 1 if warnings else 0


def _measure(
    strategy: Any, gather: Callable[[str, Any], List[Any]], log: str, local_rank: int
) -> Measured:
    import tensorflow as tf

    device = "GPU" if tf.config.get_visible_devices("GPU") else "CPU"
    step = _make_step(tf, device)
    steps = []
    for turn in range(2 * _MEASUREMENTS):  # half of the tasks at a time, as they may share CPUs
        gather("a step", None)
        if turn % 2 == local_rank % 2:
            steps.append(_mean_time(step, None))
    reduce = _make_reduction(tf, strategy)
    once = max(gather("the time of an all-reduce", _mean_time(reduce, 1)))
    # Every task has to take part in each of them.
    mean = _mean_time(reduce, max(2, min(50, int(1000 * _SECONDS / once))))
    fast = [os.path.basename(path) for pattern in _FAST_INTERFACES for path in glob.glob(pattern)]
    return Measured(device, steps, mean, nccl_network(log), fast)


def _make_step(tf: Any, device: str) -> Callable[[], Any]:
    """Returns a function that computes the gradients of a small model, without other tasks."""
    with tf.device(f"/{device}:0"):
        inputs = tf.random.stateless_normal((256, 512), (1, 2))
        weights = [tf.random.stateless_normal((512, 512), (3, n)) / 23 for n in range(4)]

    @tf.function  # type: ignore[untyped-decorator]
    def gradients() -> Any:
        with tf.device(f"/{device}:0"), tf.GradientTape() as tape:
            tape.watch(weights)
            outputs = inputs
            for weight in weights:
                outputs = tf.nn.relu(outputs @ weight)
            loss = tf.reduce_mean(outputs**2)
        return tf.add_n([tf.reduce_sum(one) for one in tape.gradient(loss, weights)])

    return lambda: gradients().numpy()


def _make_reduction(tf: Any, strategy: Any) -> Callable[[], Any]:
    def replica() -> Any:
        # Two tensors, as TensorFlow takes NCCL only for several at once.
        halves = [tf.ones((_MEGABYTES * 1024 * 1024 // 8,)) for _ in range(2)]
        context = tf.distribute.get_replica_context()
        reduced = context.all_reduce(tf.distribute.ReduceOp.SUM, halves)
        return reduced[0][0] + reduced[1][0]

    @tf.function  # type: ignore[untyped-decorator]
    def reduction() -> Any:
        return strategy.experimental_local_results(strategy.run(replica))[0]

    return lambda: reduction().numpy()


def _mean_time(action: Callable[[], Any], times: Optional[int]) -> float:
    """Returns the mean milliseconds of an action; `times` None repeats it for some time.

    A limit on the CPU time lengthens the mean, but not the median.
    """
    action()  # compiles it
    began, number = time.perf_counter(), 0
    while time.perf_counter() < began + _SECONDS if times is None else number < times:
        action()
        number += 1
    return 1000 * (time.perf_counter() - began) / number


def nccl_network(log: str) -> str:
    """Returns the network that NCCL names in its log; '' where it names none."""
    files = [Path(name) for name in glob.glob(f"{log}*")]
    text = "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    found = re.findall(r"Using network (.+)", text) or re.findall(r"via NET/(\w+)", text)
    return found[-1].strip() if found else ""


def find_warnings(by_rank: Mapping[int, Measured], name_of: Callable[[int], str]) -> List[str]:
    """Returns the tasks that are far slower than the others, and slow networks."""
    warnings = []
    median = statistics.median(min(one.steps) for one in by_rank.values())
    for rank, one in by_rank.items():
        ratio = min(one.steps) / median
        if ratio > _FAR_SLOWER:
            warnings.append(
                f"{name_of(rank)} computes {ratio:.1f} times as slowly as the median task; "
                "look at what else runs on its node, and at the CPUs that it was given"
            )
    slow = [rank for rank, one in by_rank.items() if one.transport == "Socket" and one.fast]
    if slow:
        names = ", ".join(by_rank[slow[0]].fast)
        warnings.append(
            f"NCCL uses sockets in {name_of(slow[0])}, though its node has {names}: load your "
            "site's NCCL plugin (its module), and see NCCL_DEBUG=INFO"
        )
    return warnings


def as_json(by_rank: Mapping[int, Measured], warnings: Sequence[str]) -> str:
    """Returns the measurements as JSON."""
    tasks = [{"rank": rank, **_row(one, len(by_rank))} for rank, one in by_rank.items()]
    return json.dumps({"ok": not warnings, "tasks": tasks, "warnings": list(warnings)})


def as_table(by_rank: Mapping[int, Measured], warnings: Sequence[str]) -> str:
    """Returns a table by rank, the medians, and the warnings."""
    rows = {str(rank): _row(one, len(by_rank)) for rank, one in by_rank.items()}
    medians = {
        name: statistics.median(row[name] for row in rows.values())
        for name in ("step_ms", "all_reduce_ms", "gb_per_s")
    }
    rows["all"] = {"device": "median", "transport": "", **medians}
    lines = ["rank  device  step ms  all-reduce ms   GB/s  by"]
    for name, row in rows.items():
        lines.append(
            f"{name:<4}  {row['device']:6}  {row['step_ms']:7.2f}  "
            f"{row['all_reduce_ms']:13.1f}  {row['gb_per_s']:5.2f}  {row['transport']}"
        )
    return "\n".join([*(line.rstrip() for line in lines), *(f"warning: {w}" for w in warnings)])


def _row(one: Measured, tasks: int) -> Dict[str, Any]:
    # what each task sends in a ring, and at least in any other way
    sent = _MEGABYTES * 1024**2 * 2 * (tasks - 1) / tasks
    return {
        "device": one.device,
        "step_ms": round(min(one.steps), 3),
        "all_reduce_ms": round(one.reduce, 2),
        "gb_per_s": round(sent / one.reduce / 1e6, 3),
        "transport": f"NCCL, {one.transport}" if one.transport else "",
    }


if __name__ == "__main__":
    sys.exit(main())
