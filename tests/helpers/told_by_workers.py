"""Runs programs of TensorFlow in one process, in workers here, and on nodes of the real Slurm."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from kinds import Completed, Strings
from local_run import captured, in_step
from slurm_cluster import SlurmCluster

SECONDS = 1500


def run(
    command: Strings,
    folder: Path,
    workers: int = 2,
    status: int | None = 0,
    **variables: str,
) -> Completed:
    """Runs a command on CPUs in a folder: in workers, or in one process if there are 0 workers."""
    folder.mkdir(exist_ok=True)
    return captured(
        in_step(f"-n {workers} --no-label", *command) if workers else command,
        status=status,
        cwd=folder,
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            **variables,
        },
        timeout=SECONDS,
    )


def run_on_slurm(
    slurm: SlurmCluster,
    command: Strings,
    folder: Path,
    options: str = "-w n9,n10 -N2 -n2",
    status: int | None = 0,
) -> Completed:
    """Runs a command in a folder, in a step with these options of srun."""
    folder.mkdir(exist_ok=True)
    return slurm.run(
        f"srun --kill-on-bad-exit=1 {options} {shlex.join(command)}",
        cwd=folder,
        timeout=SECONDS,
        status=status,
    )


def lines_told(done: Completed) -> Strings:
    """Returns the lines of all workers that start with "told"."""
    return sorted(line for line in done.stdout.splitlines() if line.startswith("told"))


def told(script: str, folder: Path, workers: int = 2) -> Strings:
    """Runs a script, and returns the lines of all workers that start with "told"."""
    return lines_told(run([sys.executable, "-W", "ignore", "-c", script], folder, workers))
