"""Helpers for tests that submit jobs to a real Slurm."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Callable

from kinds import Strings, Texts
from slurm_cluster import SlurmCluster

# The tasks find the commands of this environment. TensorFlow does not log what it was built for.
ENVIRONMENT = {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}
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


def accuracies(output: str) -> list[float]:
    """Returns the accuracies that an example prints."""
    return [float(number) for number in re.findall(r"test accuracy ([\d.]+)", output)]


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


def await_jobs(
    slurm: SlurmCluster,
    ids: Mapping[str, str],
    folders: Mapping[str, Path],
    has_started: Callable[[str], bool],
    act: Callable[[str], object],
) -> dict[str, list[Texts]]:
    """Acts on each job once it has started; returns the fields of all jobs after they have ended.

    Names stand for the jobs: `ids` has their ids, and `folders` the folders of their output.
    """
    pending = set(ids)
    found: dict[str, list[Texts]] = {}

    def left() -> Strings:
        return [
            name
            for name, id in ids.items()
            if name in pending or any(job["JobState"] not in ENDS for job in found[id])
        ]

    def have_ended() -> bool:
        for name in left():
            if name in pending and has_started(name):
                pending.remove(name)
                act(name)
        found.update(shown_jobs(slurm))
        return not left()

    def explain() -> str:
        outputs = [read(folders[name] / "out") for name in left()]
        return "\n".join([f"{left()} have not ended", *outputs])

    wait_for(have_ended, 400, explain)
    return {name: found[id] for name, id in ids.items()}
