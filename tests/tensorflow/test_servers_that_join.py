"""TensorFlow's way to train with parameter servers, unchanged, under `exec --servers ps,worker`.

Here without `--kill-on-bad-exit`: srun waits for every task.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Dict

import pytest
from served_jobs import Job
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.tensorflow, pytest.mark.newest]

EXEC = shlex.join([sys.executable, "-m", "slurm_resolver", "exec"])
BEFORE = f"{EXEC} --jobs chief=1,ps=1,worker=-1 --servers ps,worker --"


@pytest.mark.parametrize(
    ("status", "expected"), [("0", {0: 0, 1: 0, 2: 0}), ("7", {0: 7, 1: 1, 2: 1})]
)
def test_workers_that_only_join_end_with_the_chief(
    real_slurm: SlurmCluster, tmp_path: Path, status: str, expected: Dict[int, int]
) -> None:
    job = Job(real_slurm, tmp_path, "joined_strategy.py", 3, status, BEFORE=BEFORE)
    _, errors = job.await_end(120)
    assert job.ends() == expected, errors
    told = "chief 0 (rank 0 on n8) has failed: exit status 7"
    assert errors.count(told) == (2 if status == "7" else 0), errors
