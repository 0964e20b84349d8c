"""A worker of `MultiWorkerMirroredStrategy` that counts what its node sends during all-reduces.

The tasks wait for each other by files, which sends nothing. Each writes to TASK_OUTPUT/RANK the
bytes that its node's interface sent while all were idle, and while they reduced a tensor.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict

import slurm_resolver as sr


def sent() -> int:
    """Returns the bytes that the node's interface to the others has sent."""
    lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    own = next(line for line in lines if line.strip().startswith("eth0:"))
    return int(own.partition(":")[2].split()[8])


def wait_for_all(name: str, rank: int, tasks: int) -> None:
    """Returns when every task has come here."""
    folder = Path(os.environ["TASK_OUTPUT"], name)
    folder.mkdir(exist_ok=True)
    (folder / str(rank)).touch()
    deadline = time.monotonic() + 120
    while len(list(folder.iterdir())) < tasks:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all of {tasks} tasks have come to {name}")
        time.sleep(0.02)


def main() -> None:
    """Reduces a tensor of ones as often as the options say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker-order", default="ring")
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--times", type=int, required=True)
    args = parser.parse_args()

    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    modules: Dict[str, Any] = sys.modules
    modules["keras"] = None  # half of TensorFlow's own import, and not needed
    import tensorflow as tf

    resolver = sr.SlurmClusterResolver(worker_order=args.worker_order)
    own, tasks = resolver.cluster.task, len(resolver.cluster.tasks)
    assert own is not None
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)

    @tf.function  # type: ignore[untyped-decorator]
    def reduce() -> Any:
        def replica() -> Any:
            ones = tf.ones([args.bytes // 4])
            return tf.distribute.get_replica_context().all_reduce("SUM", ones)[0]

        return strategy.run(replica)

    assert float(reduce()) == tasks  # also makes the connections
    readings = []
    for phase, times in (("idle", 0), ("busy", args.times)):
        wait_for_all(f"before {phase}", own.rank, tasks)
        readings.append(sent())
        wait_for_all(f"begin {phase}", own.rank, tasks)
        for _ in range(times):
            reduce()
    wait_for_all("after", own.rank, tasks)
    readings.append(sent())
    wait_for_all("end", own.rank, tasks)
    idle, busy = (after - before for before, after in zip(readings, readings[1:]))
    result = {"node": own.node, "index": own.index, "idle": idle, "busy": busy}
    Path(os.environ["TASK_OUTPUT"], str(own.rank)).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
