"""Runs programs in workers on this machine, and returns what they tell."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from keras_outcomes import SECONDS
from kinds import Completed, Strings
from local_run import captured, in_step


def run(command: Strings, folder: Path, workers: int = 2, status: int | None = 0) -> Completed:
    """Runs a command in workers on CPUs in a folder."""
    return captured(
        in_step(f"-n {workers} --no-label", *command),
        status=status,
        cwd=folder,
        env={
            **os.environ,
            "TASK_OUTPUT": str(folder),
            "CUDA_VISIBLE_DEVICES": "",
        },
        timeout=SECONDS,
    )


def told(script: str, folder: Path, workers: int = 2) -> Strings:
    """Returns what all workers say in a line that starts with "told"."""
    done = run([sys.executable, "-W", "ignore", "-c", script], folder, workers)
    return sorted(line for line in done.stdout.splitlines() if line.startswith("told"))
