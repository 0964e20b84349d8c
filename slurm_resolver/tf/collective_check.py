"""`slurm-resolver check --collective`: one real step and one real all-reduce in every task.

    python -m slurm_resolver.tf.collective_check OPTIONS

The process of `check` becomes this one. The tasks that train make the strategy, and measure a small
step that each computes alone (a product of matrices), and an all-reduce of 16 MB. OPTIONS is JSON:
the resolver's options, and whether to print JSON.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import timeit
from collections.abc import Sequence
from glob import glob
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Callable

import tensorflow as tf

from slurm_resolver.coordination import NameOf
from slurm_resolver.coordination.client import connect
from slurm_resolver.tf.keras.mirrored import MultiWorkerMirroredStrategy
from slurm_resolver.tf.resolver import SlurmClusterResolver
from slurm_resolver.wording import aligned

Row = dict[str, Any]  # what a task has measured

_MEASUREMENTS = 5  # of a step, the fastest of which counts: another program may disturb the others


def main() -> int:
    """Measures, and prints the table in one task; returns 1 if there is a warning, else 0."""
    options = json.loads(sys.argv[1])
    folder = TemporaryDirectory(prefix="slurm_resolver-nccl-")
    log = os.path.join(folder.name, "nccl")
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=log)
    # Threads that wait for each other take the CPUs from tasks of the same node.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    resolver = SlurmClusterResolver(**options["resolver"])
    cluster = resolver.cluster
    # `check` has met the other tasks before.
    assert cluster.task
    assert cluster.service
    warnings = []
    if resolver.task_type in ("chief", "worker"):
        strategy = MultiWorkerMirroredStrategy(resolver)
        row = {"rank": cluster.task.rank, **_measure(strategy, log)}
        rows = strategy.workers.exchange("tells what it has measured", row)
        rows.sort(key=itemgetter("rank"))
        warnings = find_warnings(rows, cluster.name_of)
        if row == rows[0] and options["json"]:
            print(json.dumps({"ok": not warnings, "tasks": rows, "warnings": warnings}))
        elif row == rows[0]:
            text = "{rank}|{device}|{step_ms:.2f}|{all_reduce_ms:.1f}|{network}"
            cells = [text.format(**row).split("|") for row in rows]
            heads = ["rank", "device", "step ms", "all-reduce ms", "NCCL's network"]
            print(
                *aligned([heads, *cells], numbers=(2, 3)),
                *[f"warning: {text}" for text in warnings],
                sep="\n",
            )
    # The service may run in a task that does not train, and must not end before the others.
    connect(cluster.service).gather("the end of the measurement", None, None)
    return 1 if warnings else 0


def _measure(strategy: MultiWorkerMirroredStrategy, log: str) -> Row:
    """Returns what this task measures, at the same time as all others that train.

    NCCL writes its log to files whose names begin with `log`.
    """
    matrix = tf.random.stateless_normal((1024, 1024), (1, 2))

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> tf.Tensor:
        return tf.reduce_mean(matrix @ matrix)

    @tf.function  # type: ignore[untyped-decorator]
    def reduce() -> tf.Tensor:
        def replica() -> tf.Tensor:
            # Two tensors, as TensorFlow takes NCCL only for several at once; of 16 MB, as more
            # would take minutes on a slow link.
            halves = [tf.ones((2 * 1024**2,))] * 2
            return tf.distribute.get_replica_context().all_reduce("sum", halves)[0][0]

        return strategy.experimental_local_results(strategy.run(replica))[0]

    row = {
        "device": "GPU" if tf.config.get_visible_devices("GPU") else "CPU",  # TensorFlow's default
        # repeated, as a limit of CPU time counts over 0.1 s
        "step_ms": _least_time(step, 10, _MEASUREMENTS),
        "all_reduce_ms": _least_time(reduce, _MEASUREMENTS),
        "network": nccl_network(log),
    }
    fast = glob("/sys/class/net/hsn*") + glob("/sys/class/infiniband/*")
    return {**row, "unused": fast if row["network"] == "Socket" else []}


def _least_time(action: Callable[[], tf.Tensor], times: int, measurements: int = 1) -> float:
    """Returns milliseconds: a limit on the CPU time lengthens the mean, but not the median."""
    action().numpy()  # compiles it
    sums = timeit.repeat(lambda: action().numpy(), number=times, repeat=measurements)
    return 1000 * min(sums) / times


def nccl_network(log: str) -> str:
    """Returns the network that NCCL names in its log, such as "IB"; '' where it names none."""
    text = "".join(Path(name).read_text("utf-8", "replace") for name in glob(f"{log}*"))
    networks = re.findall(r"(?:Using network |via NET/)([^/\n]+)", text)
    return networks[-1].strip() if networks else ""


def find_warnings(rows: Sequence[Row], name_of: NameOf) -> list[str]:
    """Returns warnings of far slower tasks, and of fast interfaces that NCCL leaves unused."""
    median = statistics.median(row["step_ms"] for row in rows)
    warnings = [
        # `supervise` reads this line.
        f"{name_of(row['rank'])} computes {row['step_ms'] / median:.1f} times as slowly as the "
        "median task; look at what else runs on its node, and at the CPUs that it was given"
        for row in rows
        if row["step_ms"] > 2 * median
    ]
    for row in rows:
        if row["unused"]:
            warnings.append(
                f"NCCL uses sockets in {name_of(row['rank'])}, though its node has "
                f"{', '.join(row['unused'])}: load your site's NCCL plugin (its module), and see "
                "NCCL_DEBUG=INFO"
            )
            break
    return warnings


if __name__ == "__main__":
    sys.exit(main())
