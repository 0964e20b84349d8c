"""A step of one task in a larger job gets advice on the right command."""

from __future__ import annotations

import pytest
from kinds import Texts
from task_variables import ALONE

from slurm_resolver.cluster.alone import advise_on_lonely_step
from slurm_resolver.slurm.step import SlurmStep

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
def test_a_step_of_one_task(job: Texts, tasks: str) -> None:
    advice = advise_on_lonely_step(SlurmStep.read({**ALONE, **job}))
    assert bool(advice) == bool(tasks)
    assert not tasks or f"room for {tasks}. " in advice
    assert not tasks or advice.endswith(f"srun -n {tasks} …")
