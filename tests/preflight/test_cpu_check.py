"""`check` warns if the CPUs of a node's tasks are too few or shared."""

from __future__ import annotations

import os

import pytest

from slurm_resolver.preflight.cpu_check import cpu_problem
from slurm_resolver.slurm.step_variables import SlurmStep

ALL = (1 << 64) - 1
TOO_FEW = "the 2 tasks of this node may use 2 CPUs of its 64, but SLURM_CPUS_ON_NODE or SLURM_CPUS"
# The CPUs that each task may use, as masks; the CPUs of the machine; SLURM_CPUS_ON_NODE and
# SLURM_CPUS_PER_TASK; whether the tasks use GPUs; what is said.
CASES = {
    "not bound": ((ALL, ALL, ALL), 64, (64, None), False, ""),
    "bound together to all CPUs of the step": ((0xFFFF, 0xFFFF), 64, (16, None), False, ""),
    "one CPU each, as requested": ((1, 2), 64, (2, 1), False, ""),
    "fewer than requested": ((1, 2), 64, (2, 8), False, f"{TOO_FEW}_PER_TASK promises 16: srun"),
    "fewer than the step has": ((1, 2), 64, (64, None), False, f"{TOO_FEW}_PER_TASK promises 64"),
    "one CPU for a GPU": ((128,), 64, (1, None), True, "one CPU of the node's 64 for a task is"),
    "one CPU for a GPU, as the node has one": ((1,), 1, (1, None), True, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_what_slows_tasks_down(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    masks, machine, (on_node, per_task), uses_gpus, told = CASES[case]
    monkeypatch.setattr(os, "cpu_count", lambda: machine)
    step = SlurmStep(cpus_on_node=on_node, cpus_per_task=per_task)
    cpus = [[cpu for cpu in range(64) if mask >> cpu & 1] for mask in masks]
    said = cpu_problem(step, cpus, uses_gpus)
    assert said.startswith(told)
    assert bool(said) == bool(told)
