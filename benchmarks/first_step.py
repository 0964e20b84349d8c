"""Measures the time from srun to the end of the first training step, on a real Slurm of two nodes.

The ways to describe the cluster to TensorFlow run in turn in every round. They are compared with a
TF_CONFIG that is written by hand for these hosts. Most of the time is TensorFlow's own import.
"""

from __future__ import annotations

import shlex
import statistics
import sys
import time
from typing import Any

import report
from real_slurm import ENVIRONMENT, start_slurm

NODES = 2
BASELINE = "TF_CONFIG by hand"
# The argument of first_step_task.py, and the command that starts it, by way.
WAYS = {
    BASELINE: ("by-hand", ""),
    "this resolver": ("resolver", ""),
    "this resolver, wait_until_ready()": ("resolver-ready", ""),
    "slurm-resolver exec --wait": ("tf-config", "slurm-resolver exec --wait 60 --"),
    "TensorFlow's resolver": ("tensorflow", ""),
}


def measure(slurm: Any, way: str) -> float:
    """Returns the seconds until the slower task has trained its first step."""
    argument, launcher = WAYS[way]
    program = shlex.join([sys.executable, str(report.FOLDER / "first_step_task.py"), argument])
    command = f"srun -N{NODES} -n{NODES} --kill-on-bad-exit=1 {launcher} {program}"
    start = time.time()
    done = slurm.run(command, env=ENVIRONMENT, timeout=300)
    ends = [float(line) for line in done.stdout.splitlines()]
    assert len(ends) == NODES, done
    return max(ends) - start


def main() -> None:
    """Publishes a table."""
    parser = report.make_parser(__doc__, rounds=9)
    args = parser.parse_args()
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    with start_slurm(NODES) as slurm:
        for _ in range(args.rounds):
            for way in WAYS:
                taken[way].append(measure(slurm, way))
    rows = []
    for way, times in taken.items():
        ratio = statistics.median(own / base for own, base in zip(times, taken[BASELINE]))
        rows.append((way, f"{ratio:.3f}", f"{statistics.median(times):.2f}"))
    headings = [f"two nodes, {args.rounds} rounds", "ratio", "seconds to the first step"]
    report.publish("first_step", report.table(headings, rows), write=args.write)


if __name__ == "__main__":
    main()
