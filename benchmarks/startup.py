"""How long each command takes to start, against Python itself, measured in turn in one run.

Run it with the package installed: ``python benchmarks/startup.py [ROUNDS]``. Of each command it
prints the median, what that is over bare Python, and the ratio to it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import Dict, List

MODULE = ["-m", "slurm_resolver"]
COMMANDS = {
    "python": ["-c", "pass"],
    "import slurm_resolver": ["-c", "import slurm_resolver"],
    "import argparse, typing": ["-c", "import argparse, typing"],
    "--version": [*MODULE, "--version"],
    "--help": [*MODULE, "--help"],
    "exec --format env": [*MODULE, "exec", "--format", "env"],
    "exec -- true": [*MODULE, "exec", "--", "true"],
    "show --nodelist n[1-4]": [*MODULE, "show", "--nodelist", "n[1-4]"],
    "hosts expand n[1-4]": [*MODULE, "hosts", "expand", "n[1-4]"],
    "sbatch -- python": [*MODULE, "sbatch", "--", "python"],
    **{
        f"{name} --help": [*MODULE, name, "--help"]
        for name in ("run", "check", "explain", "env", "completion")
    },
}
TASK = {
    "SLURM_PROCID": "1",
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}


def main(rounds: int) -> None:
    """Runs every command once a round, so that what else the machine does meets all alike."""
    taken: Dict[str, List[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, arguments in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, *arguments],
                env={**os.environ, **TASK},
                stdout=subprocess.DEVNULL,
                check=True,
            )
            taken[name].append(time.perf_counter() - start)
    bare = statistics.median(taken["python"])
    for name, times in taken.items():
        median = statistics.median(times)
        over, ratio = 1000 * (median - bare), median / bare
        print(f"{name:28} {1000 * median:6.1f} ms  {over:+6.1f} ms  x{ratio:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
