"""Helpers for tests that submit jobs to a real Slurm."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Callable

from kinds import Texts
from slurm_cluster import SlurmCluster

# The tasks find the commands of this environment.
ENVIRONMENT = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
ENDS = (
    "COMPLETED",
    "FAILED",
    "PREEMPTED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
)


def read(path: Path) -> str:
    """Returns the text of a file, or '' if it does not exist yet."""
    return path.read_text() if path.exists() else ""


def wait_for(
    condition: Callable[[], bool], seconds: float = 90.0, explain: Callable[[], str] = str
) -> None:
    """Waits until the condition holds; on a timeout, the error contains the text of `explain`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.1)


def shown_jobs(slurm: SlurmCluster) -> dict[str, list[Texts]]:
    """Returns the fields of each job's components by job id; arrays have the id of the array."""
    found: dict[str, list[Texts]] = {}
    for line in slurm.run("scontrol --oneliner show job").stdout.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        id = fields.get("ArrayJobId") or fields.get("HetJobId") or fields["JobId"]
        found.setdefault(id, []).append(fields)
    return found
