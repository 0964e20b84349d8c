"""Measures how long each command takes to start, compared with Python itself.

All commands run in turn in every round, so that other programs on the machine disturb all of them
alike. The table shows the medians of the ratio to Python, of the time in addition to Python's, and
of the whole time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

import report

MODULE = ["-m", "slurm_resolver"]
COMMANDS = {
    "python": ["-c", "pass"],
    "import slurm_resolver": ["-c", "import slurm_resolver"],
    "import argparse, typing": ["-c", "import argparse, typing"],
    "--version": [*MODULE, "--version"],
    "--help": [*MODULE, "--help"],
    "exec -- true": [*MODULE, "exec", "--", "true"],
    "show --json": [*MODULE, "show", "--json"],
    "sbatch -- python": [*MODULE, "sbatch", "--", "python"],
    **{f"{name} --help": [*MODULE, name, "--help"] for name in ("run", "check", "explain")},
}
TASK_VARIABLES = {
    "SLURM_PROCID": "1",
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}


def seconds(arguments: list[str]) -> float:
    """Runs Python with these arguments as a task of a step, and returns the time."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **TASK_VARIABLES},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - start


def main() -> None:
    """Runs every command once in each round, and publishes a table."""
    parser = report.make_parser(__doc__, rounds=20)
    args = parser.parse_args()
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(args.rounds):
        for name, arguments in COMMANDS.items():
            taken[name].append(1000 * seconds(arguments))
    rows = []
    for name, times in taken.items():
        pairs = list(zip(times, taken["python"]))
        ratio = statistics.median(own / bare for own, bare in pairs)
        more = statistics.median(own - bare for own, bare in pairs)
        rows.append((name, f"{ratio:.2f}", f"{more:.1f}", f"{statistics.median(times):.1f}"))
    headings = ["command", "ratio", "ms over Python", "ms"]
    report.publish("startup", report.table(headings, rows), write=args.write)


if __name__ == "__main__":
    main()
