"""What `check` says of how the tasks of a node divide its GPUs."""

from __future__ import annotations

from typing import List, Optional, Tuple

import pytest

from slurm_resolver.cluster.cluster import Task
from slurm_resolver.preflight.transport import TaskDevices, check_gpus

TWICE = "gradients go by gRPC, slow: rank 0 shares GPU 0 with rank 1: start one task for each GPU"
HIDDEN = "gradients go by NCCL, through the host's memory: rank 0 and rank 1 cannot open each other"
UNKNOWN = "gradients go by gRPC, slow: rank 0 and rank 1 may share a GPU: start with srun --gpus"
OWN: List[Optional[str]] = ["0 of local rank 0", "0 of local rank 1"]
# The GPUs of the tasks of a node, their jobs, whether they are confined; the status, and the words.
CASES: List[Tuple[List[Optional[str]], str, bool, str, str]] = [
    ([], "", False, "skipped", "no task has any"),
    (["0", "1"], "worker worker", False, "ok", "2, each used by one task; gradients go by NCCL"),
    (["0"], "worker", True, "ok", "1, each used by one task"),
    (["0", "0"], "worker worker", False, "warning", TWICE),
    (["0", "0"], "worker evaluator", False, "ok", "1, 1 of them shared by tasks"),
    (["0", "0"], "worker ps", False, "ok", "1, 1 of them shared by tasks"),
    (OWN, "worker worker", True, "warning", HIDDEN),
    (OWN, "worker evaluator", True, "ok", "2, each used by one task"),
    (OWN, "worker ps", True, "ok", "2, each used by one task"),
    ([None, None], "worker worker", True, "warning", UNKNOWN),
]


@pytest.mark.parametrize(("gpus", "jobs", "confined", "status", "told"), CASES)
def test_what_is_said(
    gpus: List[Optional[str]], jobs: str, confined: bool, status: str, told: str
) -> None:
    tasks = [Task(rank, "n1", rank, job, 0, f"n1:{rank}") for rank, job in enumerate(jobs.split())]
    devices = {
        rank: TaskDevices("n1", None if gpu is None else [gpu], 1, confined)
        for rank, gpu in enumerate(gpus)
    }
    result = check_gpus(devices, tasks)
    assert (result.status, result.detail[: len(told)]) == (status, told)
