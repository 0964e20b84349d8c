"""The recorder of steps on the real Slurm: what it writes down is enough, and no more than that."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Dict

import pytest
from folders import TESTS
from recorded_steps import STEPS, recordings, unknowable
from slurm_cluster import Completed, SlurmCluster

import slurm_resolver as sr

pytestmark = pytest.mark.slurm

RECORDER = f"{sys.executable} {TESTS / 'record_steps.py'}"
SECRET = {"SLURM_STEP_TOKEN": "secret", "SPANK_TOKEN": "secret", "CUDA_TOKEN": "secret"}


def record(slurm: SlurmCluster, folder: Path, commands: Dict[str, str]) -> Completed:
    """Records these commands into steps.jsonl in the folder."""
    words = shlex.join(f"{name}={command}" for name, command in commands.items())
    command = f"{RECORDER} steps.jsonl {words}"
    return slurm.run(command, cwd=folder, env=SECRET, timeout=120, check=False)


def test_each_task_of_a_recorded_step_finds_where_all_of_them_ran(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    commands = {
        "cyclic": "srun -w n9,n10 -N2 --ntasks-per-node=2 -m cyclic task",
        "het": "srun -w n11 -n1 task ps : -w n9,n10 -N2 -n3 task worker",
        "batch": "printf '#!/bin/sh\\nsrun -n2 task; srun -n1 task\\n' > job; sbatch -W -n2 job",
    }
    assert record(real_slurm, tmp_path, commands).returncode == 0
    steps = recordings(tmp_path / "steps.jsonl")
    assert [step.command for step in steps] == [*commands.values(), commands["batch"]]
    assert [len(step.tasks) for step in steps] == [4, 4, 2, 1]
    assert [steps[0].truth()[rank][0] for rank in range(4)] == ["n9", "n10", "n9", "n10"]
    for step in steps:
        reason = unknowable(step)
        for environ in step.tasks:
            if reason is not None:
                with pytest.raises(sr.LayoutError, match=reason):
                    sr.resolve(layout="environment", environ=environ)
                continue
            tasks = sr.resolve(layout="environment", environ=environ).tasks
            assert {task.rank: (task.node, task.local_rank) for task in tasks} == step.truth()


def test_a_line_has_the_form_of_those_that_are_there(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    (tmp_path / "list").write_text("n10\nn9\nn10\n")
    host_file = f"SLURM_HOSTFILE={tmp_path}/list srun -n3 -m arbitrary task"
    assert record(real_slurm, tmp_path, {"host_file": host_file}).returncode == 0
    line = json.loads((tmp_path / "steps.jsonl").read_text(encoding="utf-8"))
    assert set(line) == set(json.loads(STEPS.read_text(encoding="utf-8").splitlines()[0]))
    assert line["files"] == {"list": "n10\nn9\nn10\n"}
    assert line["all"]["SLURM_HOSTFILE"] == "list"
    # Nothing that is secret, or this machine's alone.
    del line["command"]
    assert "secret" not in json.dumps(line)
    assert str(tmp_path) not in json.dumps(line)
    assert {path.name for path in tmp_path.iterdir()} == {"list", "steps.jsonl"}


def test_a_command_that_fails_leaves_nothing(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    commands = {"whole": "srun -n1 task", "fails": "srun -n1 task && exit 3"}
    done = record(real_slurm, tmp_path, commands)
    assert (done.returncode, done.stderr) == (1, "exit status 3: srun -n1 task && exit 3\n")
    assert list(tmp_path.iterdir()) == []
    assert record(real_slurm, tmp_path, {"none": "true"}).returncode == 2
