"""How long the tasks of a real step meet, from the last one's coming to the last one's answer.

On a real Slurm of four nodes on one machine, and TensorFlow's own bring-up for as many as fit;
beside them the whole time of a plain step of as many tasks.
"""

from __future__ import annotations

import os
import shlex
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Dict, List, NamedTuple, Tuple

import report

sys.path.insert(0, str(report.FOLDER.parent / "tests" / "helpers"))

NODES = 4
TASK = [sys.executable, "-W", "ignore", str(report.FOLDER / "meeting_live_task.py")]


class Way(NamedTuple):
    """What the tasks do, whether each of them is a TensorFlow, and whether the layout is known."""

    what: str
    heavy: bool = False
    knows_layout: bool = True


WAYS: Dict[str, Way] = {
    "find the layout": Way("layout", knows_layout=False),
    "wait_until_ready()": Way("ready"),
    "do not meet": Way("alone"),
    "TensorFlow makes the strategy": Way("tensorflow", heavy=True),
}


def step(way: Way, tasks: int) -> str:
    """Returns the srun command of a step of so many tasks."""
    if way.knows_layout:
        place = f"-N{NODES} -n{tasks} -m cyclic"
    else:  # in an order that no variable tells
        hosts = ",".join(f"n{rank % NODES + 1}" for rank in range(tasks))
        place = f"-n{tasks} -m arbitrary -w {hosts}"
    return f"srun {place} -O {shlex.join([*TASK, way.what])}"


def run(slurm: Any, command: str) -> Tuple[float, float]:
    """Returns how long the tasks met, 0 if they did not, and the whole step's time, in seconds."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    started = time.monotonic()
    done = slurm.run(command, env=environment, timeout=600)
    seconds = time.monotonic() - started
    met = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("met ")]
    if not met:
        return 0.0, seconds
    came, left = zip(*[map(float, times) for times in met])
    return max(left) - max(came), seconds


def main() -> None:
    """Publishes a table."""
    from slurm_cluster import Node, SlurmCluster

    parser = report.make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, nargs="*", default=[16, 64, 128])
    parser.add_argument("--tensorflow", type=int, nargs="*", default=[4, 8, 16])
    args = parser.parse_args()
    nodes = [Node(f"n{i + 1}", cpus=64) for i in range(NODES)]
    rows: List[Tuple[object, ...]] = []
    with TemporaryDirectory(dir="/tmp") as folder, SlurmCluster(nodes, Path(folder, "s")) as slurm:
        for name, way in WAYS.items():
            for tasks in args.tensorflow if way.heavy else args.tasks:
                plain = f"srun -N{NODES} -n{tasks} -O true"
                pairs = [
                    (*run(slurm, step(way, tasks)), run(slurm, plain)[1])
                    for _ in range(args.rounds)
                ]
                met, whole, bare = map(statistics.median, zip(*pairs))
                ratio = statistics.median(met / bare for met, _, bare in pairs)
                rows.append(
                    (name, tasks, f"{ratio:.2f}", f"{met:.3f}", f"{whole:.2f}", f"{bare:.2f}")
                )
    headings = ["the tasks", "tasks", "ratio to srun true", "seconds", "whole step", "srun true"]
    report.publish("meeting_live", report.table(headings, rows), write=args.write)


if __name__ == "__main__":
    main()
