"""`slurm-resolver show`: exact output and status."""

from __future__ import annotations

import json

import pytest
import task_variables
from captured import Captured, Patch, set_all
from local_run import refused

import slurm_resolver
from slurm_resolver.cli import main

TASK = {**task_variables.TASK, "SLURM_DISTRIBUTION": "cyclic"}
JOBS = ["--jobs", "ps=1,worker=-1"]


@pytest.fixture
def task(monkeypatch: Patch) -> None:
    set_all(monkeypatch, TASK)


@pytest.mark.usefixtures("task")
def test_every_task_prints_json(capsys: Captured) -> None:
    assert main(["show", *JOBS, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == slurm_resolver.resolve({"ps": 1, "worker": -1}).to_dict()
    assert shown["self"]["gpus"] == ["4"]
    assert main(["show", *JOBS]) == 0
    assert capsys.readouterr().out == ""  # rank 0 prints the text


@pytest.mark.usefixtures("task")
def test_text() -> None:
    assert (
        slurm_resolver.resolve({"ps": 1, "worker": -1}).text(gpus=["none", "4", "4", "5"])
        == """\
job step 42.0: 4 tasks on 2 nodes, cyclic distribution (from environment), ports from \
SLURM_STEP_RESV_PORTS
jobs: ps 1, worker 3
node  rank  local  task      GPUs  address
n9       0      0  ps 0      none  n9:23001
         2      1  worker 1  4     n9:23002
n10      1      0  worker 0  4     n10:23001  (this task)
         3      1  worker 2  5     n10:23002
GPUs of this task: 4 (CUDA_VISIBLE_DEVICES split by SLURM_LOCALID)"""
    )


def test_outside_a_step_it_says_how_to_start_it(capsys: Captured) -> None:
    assert "there is no cluster to show. Start it with srun -N 2 " in refused(capsys, "show")
