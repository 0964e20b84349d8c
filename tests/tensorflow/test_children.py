"""A child process of a task gets the cluster, and does not represent the task."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from folders import HELPERS
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.slurm, pytest.mark.newest]

PROGRAM = shlex.join([sys.executable, str(HELPERS / "slurm_children.py")])


@pytest.mark.nightly
def test_a_pool_whose_children_make_the_resolver_too(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    env = {"TASK_OUTPUT": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "2"}
    real_slurm.run(f"srun -w n8,n9 -N2 -n2 {PROGRAM}", env=env, timeout=200)
    ps, worker = (json.loads((tmp_path / str(rank)).read_text()) for rank in range(2))
    assert ps["status"] == 0
    assert worker["ends"] <= ps["ends"]  # the server has served as long as the worker trained
    child = worker["child"]
    assert (worker["admitted"], child["admitted"]) == (True, False)
    assert child["task"] == worker["task"] == ["worker", 0]
    assert child["cluster"] == worker["cluster"] == ps["cluster"]
    assert child["pid"] != worker["pid"]
