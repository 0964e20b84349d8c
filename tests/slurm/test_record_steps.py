"""The recorder of steps on the real Slurm: what it writes down is enough, and no more than that."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Dict, List

import pytest
from folders import TESTS
from recorded_steps import STEPS, Recording, recordings, unknowable
from slurm_cluster import Completed, SlurmCluster

import slurm_resolver as sr

pytestmark = pytest.mark.slurm

RECORDER = f"{sys.executable} {TESTS / 'record_steps.py'}"
CYCLIC = "srun -w n9,n10 -N2 --ntasks-per-node=2 -m cyclic task"
HETEROGENEOUS = "srun -w n11 -n1 task ps : -w n9,n10 -N2 -n3 task worker"


def record(
    slurm: SlurmCluster, folder: Path, commands: Dict[str, str], check: bool = True
) -> Completed:
    """Records these commands into steps.jsonl in the folder, with a secret in the environment."""
    words = shlex.join(f"{name}={command}" for name, command in commands.items())
    secret = {"SLURM_STEP_TOKEN": "secret", "SPANK_TOKEN": "secret", "CUDA_TOKEN": "secret"}
    command = f"{RECORDER} steps.jsonl {words}"
    return slurm.run(command, cwd=folder, env=secret, timeout=120, check=check)


def assert_found(step: Recording) -> None:
    """Every task finds where all of its step ran, or that its own variables alone do not tell."""
    assert len(step.tasks) == int(step.tasks[0]["SLURM_STEP_NUM_TASKS"])
    reason = unknowable(step)
    for environ in step.tasks:
        if reason is not None:
            with pytest.raises(sr.LayoutError, match=reason):
                sr.resolve(layout="environment", environ=environ)
            continue
        tasks = sr.resolve(layout="environment", environ=environ).tasks
        assert {task.rank: (task.node, task.local_rank) for task in tasks} == step.truth()


def test_each_task_of_a_recorded_step_finds_where_all_of_them_ran(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    commands = {"cyclic": CYCLIC, "het": HETEROGENEOUS}
    record(real_slurm, tmp_path, commands)
    record(real_slurm, tmp_path, {"later": CYCLIC})  # is appended
    steps = recordings(tmp_path / "steps.jsonl")
    names = [re.fullmatch(r"\d+\.\d+\.\d+-default-(\w+)", step.name) for step in steps]
    assert [name and name[1] for name in names] == ["cyclic", "het", "later"]
    assert [step.command for step in steps] == [CYCLIC, HETEROGENEOUS, CYCLIC]
    assert [steps[0].truth()[rank][0] for rank in range(4)] == ["n9", "n10", "n9", "n10"]
    assert steps[1].truth()[0] == ("n11", 0)
    for step in steps:
        assert_found(step)


def test_the_lines_have_the_form_of_those_that_are_there(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    (tmp_path / "list").write_text("n10\nn9\nn10\n")
    host_file = f"SLURM_HOSTFILE={tmp_path}/list srun -n3 -m arbitrary task"
    batch = "printf '#!/bin/sh\\nsrun -n2 task; srun -n1 task\\n' > job; sbatch -W -n2 job"
    record(real_slurm, tmp_path, {"host_file": host_file, "batch": batch})
    text = (tmp_path / "steps.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    known: List[Dict[str, object]] = [json.loads(line) for line in STEPS.read_text().splitlines()]
    for line, written in zip(lines, text.splitlines()):
        assert json.dumps(line, sort_keys=True, separators=(",", ":")) == written
        assert set(line) == set(known[0])
    assert lines[0]["files"] == {"list": "n10\nn9\nn10\n"}
    assert lines[0]["all"]["SLURM_HOSTFILE"] == "list"
    assert [len(step.tasks) for step in recordings(tmp_path / "steps.jsonl")] == [3, 2, 1]
    # Nothing that is secret, or this machine's alone.
    del lines[0]["command"]
    values = json.dumps(lines)
    assert "secret" not in values
    assert str(tmp_path) not in values
    assert {path.name for path in tmp_path.iterdir()} >= {"job", "list", "steps.jsonl"}
    assert not list(tmp_path.glob("record-*"))


def test_in_an_allocation_it_knows_what_to_run(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    allocation = "salloc --quiet -w n9,n10 -N2 --ntasks-per-node=2"
    real_slurm.run(f"{allocation} {RECORDER} steps.jsonl", cwd=tmp_path, timeout=120)
    steps = recordings(tmp_path / "steps.jsonl")
    names = [step.name.rpartition("-")[2] for step in steps]
    assert names == ["default", "cyclic", "plane_2", "het_local_step"]
    for step in steps[:3]:  # no variable tells that the fourth is heterogeneous
        assert_found(step)


def test_a_command_that_fails_leaves_nothing(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    commands = {"cyclic": CYCLIC, "fails": "srun -n1 task && exit 3"}
    done = record(real_slurm, tmp_path, commands, check=False)
    assert (done.returncode, done.stderr) == (1, "exit status 3: srun -n1 task && exit 3\n")
    assert list(tmp_path.iterdir()) == []
    assert record(real_slurm, tmp_path, {"none": "true"}, check=False).returncode == 2
