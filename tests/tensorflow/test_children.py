"""A child process of a task gets the cluster, and does not represent the task."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any, Dict

import pytest
from folders import HELPERS
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.slurm, pytest.mark.newest]

PROGRAM = shlex.join([sys.executable, str(HELPERS / "slurm_children.py")])


def run(slurm: SlurmCluster, tmp_path: Path, script: str) -> Dict[str, Dict[str, Any]]:
    """Runs a step of a ps on n8 and a worker on n9; what each told, by rank and program."""
    slurm.run(
        f"srun -w n8,n9 -N2 -n2 bash -c {shlex.quote(script)}",
        env={"TASK_OUTPUT": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "2"},
        timeout=200,
    )
    return {path.name: json.loads(path.read_text()) for path in tmp_path.glob("[0-9]-*")}


def assert_served(ps: Dict[str, Any], worker: Dict[str, Any]) -> None:
    assert ps["status"] == 0
    assert ps["undone"]
    assert worker["joins"]
    assert worker["ends"] <= ps["ends"]  # the server has served as long as the worker trained


@pytest.mark.nightly
def test_a_pool_whose_children_make_the_resolver_too(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    told = run(real_slurm, tmp_path, f"{PROGRAM} a --pool")
    ps, worker = told["0-a"], told["1-a"]
    assert_served(ps, worker)
    child = worker["child"]
    assert child["task"] == ["worker", 0]
    assert child["cluster"] == worker["cluster"] == ps["cluster"]
    assert child["parent"] == worker["pid"]
    assert not child["joins"]


@pytest.mark.nightly
def test_programs_that_run_one_after_another(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    told = run(real_slurm, tmp_path, f"{PROGRAM} a && exec {PROGRAM} b")
    for name in "ab":
        assert_served(told[f"0-{name}"], told[f"1-{name}"])
