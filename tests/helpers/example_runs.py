"""Runs examples on a real Slurm, as a user does, and reads what they print."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import slurm_jobs
from slurm_cluster import SlurmCluster

# The tasks use this environment's Python. TensorFlow does not log what it was built for.
ENVIRONMENT = {
    **slurm_jobs.ENVIRONMENT,
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}


def accuracies(output: str) -> list[float]:
    return [float(number) for number in re.findall(r"test accuracy ([\d.]+)", output)]


def batch_file(slurm: SlurmCluster, allocation: str, command: str, example: Path) -> str:
    """Runs a batch file in a copy of its example, and returns its output.

    The batch file must leave no files there. `sbatch --wait` may notice the end half a minute late,
    so salloc runs the file.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(example, Path(folder, example.name))
        files = {path.name for path in copy.iterdir()}
        done = slurm.run(
            f"salloc --quiet {allocation} bash {command}", cwd=copy, env=ENVIRONMENT, timeout=300
        )
        assert {path.name for path in copy.iterdir()} <= {*files, "__pycache__"}
    return done.stdout
