"""The examples, run as a user runs them on a real Slurm, and what they print."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import List

from slurm_cluster import SlurmCluster

# The tasks find this environment's Python, and TensorFlow keeps to itself what it is built for.
ENVIRONMENT = {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}


def accuracies(output: str) -> List[float]:
    return [float(number) for number in re.findall(r"test accuracy ([\d.]+)", output)]


def batch_file(slurm: SlurmCluster, allocation: str, command: str, example: Path) -> str:
    """Runs a batch file in a copy of its example, in which it leaves nothing; what it wrote.

    Not by `sbatch --wait`, which may take half a minute to notice the end.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(example, Path(folder, example.name))
        files = {path.name for path in copy.iterdir()}
        done = slurm.run(
            f"salloc --quiet {allocation} bash {command}", cwd=copy, env=ENVIRONMENT, timeout=300
        )
        assert {path.name for path in copy.iterdir()} <= {*files, "__pycache__"}
    return done.stdout
