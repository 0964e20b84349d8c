"""A step of one task, or a launcher in each task, gets advice on the right command."""

from __future__ import annotations

from typing import Dict

import pytest
from task_variables import TASK

from slurm_resolver.preflight.job_checks import advise_on_lonely_step, advise_on_nested_run
from slurm_resolver.slurm.step import SlurmStep

ALONE = {**TASK, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "n9"}
ALONE["SLURM_STEP_TASKS_PER_NODE"] = "1"

# The variables of the job, and the number of tasks that fit into it ("" if there is no advice).
JOBS = [
    ({}, ""),
    ({"SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS_PER_NODE": "1"}, ""),
    ({"SLURM_JOB_NUM_NODES": "3"}, "3"),
    ({"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "4"}, "8"),
    ({"SLURM_JOB_NUM_NODES": "3", "SLURM_STEP_NUM_TASKS": "3"}, ""),
    ({"SLURM_JOB_NUM_NODES": "3", "SLURM_STEP_ID": "-5"}, ""),  # a batch script
    ({"SLURM_JOB_NUM_NODES": "3", "SLURM_RESOLVER_JOB": "42"}, ""),  # slurm-resolver run
]


@pytest.mark.parametrize(("job", "tasks"), JOBS)
def test_a_step_of_one_task(job: Dict[str, str], tasks: str) -> None:
    advice = advise_on_lonely_step(SlurmStep.read({**ALONE, **job}))
    assert bool(advice) == bool(tasks)
    assert not tasks or f"place for {tasks}. " in advice
    assert not tasks or advice.endswith(f"srun -n {tasks} …")


def test_a_launcher_in_each_task_of_srun() -> None:
    advice = advise_on_nested_run(SlurmStep.read({**TASK, "SLURM_PROCID": "0"}), 2)
    assert "4 separate trainings" in advice
    assert advice.endswith("srun -n 8 …")
    assert advise_on_nested_run(SlurmStep.read(TASK), 2) == ""  # only rank 0 gives the advice
    assert advise_on_nested_run(SlurmStep.read({}), 2) == ""
