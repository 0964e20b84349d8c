"""Measures how long the tasks of a real step meet.

A meeting lasts from the arrival of the last task until the last task has its answer. The Slurm has
four nodes on this machine. All times are compared with that of `srun true` with the same number of
tasks.
"""

from __future__ import annotations

import shlex
import statistics
import sys
import time
from typing import Any

import report
from real_slurm import ENVIRONMENT, start_slurm

NODES = 4
TASK = [sys.executable, "-W", "ignore", str(report.FOLDER / "meeting_live_task.py")]


# The argument of meeting_live_task.py, by what the tasks do.
WAYS = {
    "find the layout": "layout",
    "wait_until_ready()": "ready",
    "do not meet": "alone",
}


def srun_command(way: str, tasks: int) -> str:
    """Returns the command of a step with that many tasks."""
    if way == "layout":  # no variable of Slurm describes the arbitrary distribution
        hosts = ",".join(f"n{rank % NODES + 1}" for rank in range(tasks))
        options = f"-n{tasks} -m arbitrary -w {hosts}"
    else:
        options = f"-N{NODES} -n{tasks} -m cyclic"
    return f"srun {options} -O {shlex.join([*TASK, way])}"


def run(slurm: Any, command: str) -> tuple[float, float]:
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
    parser = report.make_parser(__doc__, counts=[16, 64, 128], rounds=3)
    args = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    with start_slurm(NODES, cpus=64) as slurm:
        for name, way in WAYS.items():
            for tasks in args.counts:
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
