"""`slurm-resolver show` in the tasks of a real step."""

from __future__ import annotations

import sys

import pytest
from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm


def test_one_task_prints_for_all(real_slurm: SlurmCluster) -> None:
    command = f"{sys.executable} -m slurm_resolver show --once"
    shown = real_slurm.run(f"srun -w n9,n10 -N2 --ntasks-per-node=2 {command}").stdout
    assert shown.count("4 tasks on 2 nodes") == 1
    assert "(this task)" in shown.splitlines()[3]
