"""`check` warns if the CPUs of a node's tasks are too few or shared."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_resolver.preflight.cpu_check import CpuFacts, check_cpus


def tasks(*own: int, machine: int = 64, **fields: Any) -> list[CpuFacts]:
    """Returns a node's tasks from their CPU masks, in which bit N stands for CPU N."""
    return [
        CpuFacts([cpu for cpu in range(64) if mask >> cpu & 1], machine, **fields) for mask in own
    ]


ALL = (1 << 64) - 1
CASES: dict[str, tuple[list[CpuFacts], str]] = {
    "not bound": (tasks(ALL, ALL, ALL, granted=64), ""),
    "bound together to all CPUs of the step": (tasks(0xFFFF, 0xFFFF, granted=16), ""),
    "one CPU each, as requested": (
        tasks(
            1,
            2,
            granted=2,
            per_task=1,
        ),
        "",
    ),
    "fewer than requested": (
        tasks(
            1,
            2,
            per_task=8,
            granted=2,
        ),
        (
            "2 tasks on n1 may use 2 CPUs of its 64, but SLURM_CPUS_ON_NODE or SLURM_CPUS_PER_TASK "
            "promises 16: srun --cpus-per-task=8, or export SRUN_CPUS_PER_TASK before srun. If "
            "srun has that option, another binding is in force: unset SLURM_CPU_BIND"
        ),
    ),
    "fewer than the step has": (
        tasks(1, 2, granted=64),
        (
            "2 tasks on n1 may use 2 CPUs of its 64, but SLURM_CPUS_ON_NODE or SLURM_CPUS_PER_TASK "
            "promises 64: srun --cpus-per-task=32, or export"
        ),
    ),
    "one CPU for a GPU": (
        tasks(
            128,
            uses_gpus=True,
            granted=1,
        ),
        "1 task on n1 may use 1 CPU each of its 64, too few to feed a GPU: ask for more",
    ),
    "one CPU for a GPU, as the node has one": (
        tasks(
            1,
            machine=1,
            uses_gpus=True,
            granted=1,
        ),
        "",
    ),
}


@pytest.mark.parametrize(("given", "told"), CASES.values(), ids=CASES)
def test_what_slows_tasks_down(given: list[CpuFacts], told: str) -> None:
    result = check_cpus({"n1": given})
    assert result.status == ("warning" if told else "ok")
    assert result.detail.startswith(told)
