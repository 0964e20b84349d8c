"""Whether the CPUs that each task may use suffice.

TensorFlow starts a thread for each CPU that the process may use (sched_getaffinity). A task that is
bound to one CPU of many trains slowly without a message.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from slurm_resolver.preflight.result import WARNING, Result, result_of
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.whole_number import read_whole_number
from slurm_resolver.wording import counted, ranges_of


class CpuFacts(NamedTuple):
    """What a task sends to the others."""

    rank: int
    mask: int  # the CPUs that it may use, bit N for CPU N
    machine: int  # the number of CPUs of the node
    granted: int = 0  # SLURM_CPUS_ON_NODE; 0 if it is not set
    per_task: int = 0  # SLURM_CPUS_PER_TASK; 0 if it is not set
    uses_gpus: bool = False

    @property
    def cpus(self) -> list[int]:
        """The CPUs that the task may use."""
        return [cpu for cpu in range(self.mask.bit_length()) if self.mask >> cpu & 1]


def cpu_facts(step: SlurmStep, rank: int, uses_gpus: bool) -> CpuFacts:
    """Returns what this task sends to the others about its CPUs."""
    own = os.sched_getaffinity(0)
    return CpuFacts(
        rank=rank,
        mask=sum(1 << cpu for cpu in own),
        machine=max(os.cpu_count() or 1, len(own)),
        granted=read_whole_number(step.cpus_on_node or "") or 0,
        per_task=read_whole_number(step.cpus_per_task or "") or 0,
        uses_gpus=uses_gpus,
    )


def check_cpus(by_node: Mapping[str, Sequence[CpuFacts]]) -> Result:
    """Returns the result for the tasks of all nodes."""
    least = min(len(task.cpus) for tasks in by_node.values() for task in tasks)
    return result_of(
        "cpus",
        [_find_problem(node, tasks) for node, tasks in by_node.items()],
        f"each task may use at least {counted(least, 'CPU')}",
        WARNING,
    )


def _find_problem(node: str, tasks: Sequence[CpuFacts]) -> str:
    """Returns what slows down the tasks of a node, and what to do about it; or ''."""
    first = tasks[0]
    usable = {cpu for task in tasks for cpu in task.cpus}
    granted = max(first.granted, first.per_task * len(tasks))
    if len(usable) < min(max(granted // 2 + 1, len(tasks)), granted, first.machine):
        remedy = (
            f"srun --cpus-per-task={max(1, granted // len(tasks))}, or export SRUN_CPUS_PER_TASK "
            "before srun"
        )
        if first.per_task:
            remedy = (
                "if srun has --cpus-per-task, another binding is in force: unset SLURM_CPU_BIND, "
                f"which an outer step leaves, and start without taskset; else {remedy}"
            )
        return (
            f"{_named('rank', [task.rank for task in tasks])} on {node} may use "
            f"{_named('CPU', usable)}, but SLURM_CPUS_ON_NODE or SLURM_CPUS_PER_TASK promises "
            f"{granted}: {remedy}"
        )
    starving = [task.rank for task in tasks if task.uses_gpus and len(task.cpus) == 1]
    if starving and first.machine > 1:
        return (
            f"{_named('rank', starving)} on {node} may use 1 CPU of the node's {first.machine}, "
            "too few to feed a GPU: ask for more, sbatch --cpus-per-task=N"
        )
    return ""


def _named(noun: str, numbers: Collection[int]) -> str:
    return f"{noun}{'' if len(numbers) == 1 else 's'} {','.join(ranges_of(numbers))}"
