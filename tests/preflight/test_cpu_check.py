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
    "not bound, and more tasks than CPUs": (
        tasks(
            *[3] * 4,
            machine=2,
            granted=4,
        ),
        "",
    ),
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
    "all CPUs of a small step": (
        tasks(
            0xF,
            granted=4,
            uses_gpus=True,
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
        "2 tasks on n1 may use 2 CPUs of its 64; SLURM_CPUS_ON_NODE and SLURM_CPUS_PER_TASK ",
    ),
    "fewer than the step has": (tasks(1, 2, granted=64), "2 tasks on n1 may use 2 CPUs of its 64;"),
    "one CPU for a GPU": (
        tasks(
            128,
            uses_gpus=True,
            granted=1,
        ),
        "a task on n1 may use 1 CPU of the node's 64, too few to feed a GPU",
    ),
}


@pytest.mark.parametrize(("given", "told"), CASES.values(), ids=CASES)
def test_what_slows_tasks_down(given: list[CpuFacts], told: str) -> None:
    result = check_cpus({"n1": given})
    assert result.status == ("warning" if told else "ok")
    assert result.detail.startswith(told)
