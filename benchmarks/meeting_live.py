"""Measures how long the tasks of a real step meet.

A meeting lasts from the arrival of the last task until the last task has its answer. The Slurm has
four nodes on this machine. TensorFlow's own start is measured as well, with fewer tasks. All times
are compared with that of `srun true` with the same number of tasks.
"""

from __future__ import annotations

import shlex
import statistics
import sys
import time
from typing import Any, Dict, List, NamedTuple, Tuple

import report
from real_slurm import ENVIRONMENT, start_slurm

NODES = 4
TASK = [sys.executable, "-W", "ignore", str(report.FOLDER / "meeting_live_task.py")]


class Way(NamedTuple):
    """What the tasks do.

    Attributes:
        argument: the argument of meeting_live_task.py.
        uses_tensorflow: whether the tasks import TensorFlow, so that fewer fit.
        knows_layout: whether Slurm's variables describe the layout.
    """

    argument: str
    uses_tensorflow: bool = False
    knows_layout: bool = True


WAYS: Dict[str, Way] = {
    "find the layout": Way("layout", knows_layout=False),
    "wait_until_ready()": Way("ready"),
    "do not meet": Way("alone"),
    "TensorFlow makes the strategy": Way("tensorflow", uses_tensorflow=True),
}


def srun_command(way: Way, tasks: int) -> str:
    """Returns the command of a step with that many tasks."""
    if way.knows_layout:
        options = f"-N{NODES} -n{tasks} -m cyclic"
    else:  # no variable describes the arbitrary distribution
        hosts = ",".join(f"n{rank % NODES + 1}" for rank in range(tasks))
        options = f"-n{tasks} -m arbitrary -w {hosts}"
    return f"srun {options} -O {shlex.join([*TASK, way.argument])}"


def run(slurm: Any, command: str) -> Tuple[float, float]:
    """Returns the seconds of the meeting, or 0 without one, and the seconds of the whole step."""
    start = time.monotonic()
    done = slurm.run(command, env=ENVIRONMENT, timeout=600)
    seconds = time.monotonic() - start
    met = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("met ")]
    if not met:
        return 0.0, seconds
    arrivals, ends = zip(*[map(float, times) for times in met])
    return max(ends) - max(arrivals), seconds


def main() -> None:
    """Publishes a table."""
    parser = report.make_parser(__doc__, rounds=3)
    parser.add_argument(
        "--tasks",
        metavar="N",
        type=int,
        nargs="*",
        default=[16, 64, 128],
        help="numbers of tasks [16 64 128]",
    )
    parser.add_argument(
        "--tensorflow",
        type=int,
        nargs="*",
        default=[4, 8, 16],
        metavar="N",
        help="numbers of tasks with TensorFlow [4 8 16]",
    )
    args = parser.parse_args()
    rows: List[Tuple[object, ...]] = []
    with start_slurm(NODES, cpus=64) as slurm:
        for name, way in WAYS.items():
            for tasks in args.tensorflow if way.uses_tensorflow else args.tasks:
                bare_command = f"srun -N{NODES} -n{tasks} -O true"
                results = [
                    (*run(slurm, srun_command(way, tasks)), run(slurm, bare_command)[1])
                    for _ in range(args.rounds)
                ]
                met, whole, bare = map(statistics.median, zip(*results))
                ratio = statistics.median(met / bare for met, _, bare in results)
                rows.append(
                    (name, tasks, f"{ratio:.2f}", f"{met:.3f}", f"{whole:.2f}", f"{bare:.2f}")
                )
    headings = ["the tasks", "tasks", "ratio to srun true", "seconds", "whole step", "srun true"]
    report.publish("meeting_live", report.table(headings, rows), write=args.write)


if __name__ == "__main__":
    main()
