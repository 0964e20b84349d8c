"""Starts a real Slurm of several nodes on this machine."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))

from slurm_cluster import SlurmCluster
from slurm_conf import Node
from slurm_installation import SlurmUnavailable

# The tasks use this environment's Python, and TensorFlow logs only errors.
ENVIRONMENT = {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


@contextlib.contextmanager
def start_slurm(nodes: int, cpus: int = 8) -> Iterator[SlurmCluster]:
    """Starts Slurm on nodes called n1, n2 and so on, and stops it at the end.

    Args:
        nodes: the number of nodes.
        cpus: the number of CPUs that Slurm assumes on each node.
    """
    named = [Node(f"n{number + 1}", cpus=cpus) for number in range(nodes)]
    with TemporaryDirectory(dir="/tmp") as folder:
        try:
            with SlurmCluster(named, Path(folder, "slurm")) as slurm:
                yield slurm
        except SlurmUnavailable as error:
            raise SystemExit(f"cannot start Slurm: {error}") from None
