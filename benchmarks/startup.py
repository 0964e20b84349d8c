"""How long each command takes to start, against Python itself, measured in turn in one run.

Told are the median of the rounds' ratios to bare Python, what the command takes over that, and
what it takes in all.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import Dict, List

import report

MODULE = ["-m", "slurm_resolver"]
COMMANDS = {
    "python": ["-c", "pass"],
    "import slurm_resolver": ["-c", "import slurm_resolver"],
    "import argparse, typing": ["-c", "import argparse, typing"],
    "--version": [*MODULE, "--version"],
    "--help": [*MODULE, "--help"],
    "exec -- true": [*MODULE, "exec", "--", "true"],
    "show --nodelist n[1-4]": [*MODULE, "show", "--nodelist", "n[1-4]"],
    "sbatch -- python": [*MODULE, "sbatch", "--", "python"],
    **{f"{name} --help": [*MODULE, name, "--help"] for name in ("run", "check", "explain", "env")},
}
TASK = {
    "SLURM_PROCID": "1",
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}


def main() -> None:
    """Runs every command once a round, so that what else the machine does meets all alike."""
    parser = report.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    taken: Dict[str, List[float]] = {name: [] for name in COMMANDS}
    for _ in range(args.rounds):
        for name, arguments in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, *arguments],
                env={**os.environ, **TASK},
                stdout=subprocess.DEVNULL,
                check=True,
            )
            taken[name].append(time.perf_counter() - start)
    rows = []
    for name, times in taken.items():
        pairs = list(zip(times, taken["python"]))
        ratio = statistics.median(own / bare for own, bare in pairs)
        over = 1000 * statistics.median(own - bare for own, bare in pairs)
        rows.append((name, f"{ratio:.2f}", f"{over:.1f}", f"{1000 * statistics.median(times):.1f}"))
    headings = ["command", "ratio", "ms over Python", "ms"]
    report.publish("startup", report.table(headings, rows), write=args.write)


if __name__ == "__main__":
    main()
