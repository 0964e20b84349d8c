"""Whether the CPUs that each task may use suffice.

TensorFlow starts a thread for each CPU that the process may use (sched_getaffinity). A task that is
bound to one CPU of many trains slowly without a message.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_resolver.preflight.result import WARNING, Result, result_of
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.wording import counted


class CpuFacts(NamedTuple):
    """What a task sends to the others."""

    cpus: Sequence[int]  # those that it may use
    machine: int  # the number of CPUs of the node
    granted: int = 0  # SLURM_CPUS_ON_NODE; 0 if it is not set
    per_task: int = 0  # SLURM_CPUS_PER_TASK; 0 if it is not set
    uses_gpus: bool = False


def cpu_facts(step: SlurmStep, uses_gpus: bool) -> CpuFacts:
    """Returns what this task sends to the others about its CPUs."""
    return CpuFacts(
        cpus=sorted(os.sched_getaffinity(0)),
        machine=os.cpu_count() or 1,
        granted=step.cpus_on_node or 0,
        per_task=step.cpus_per_task or 0,
        uses_gpus=uses_gpus,
    )


def check_cpus(by_node: Mapping[str, Sequence[CpuFacts]]) -> Result:
    """Returns the result for the tasks of all nodes."""
    return result_of(
        "cpus",
        [
            f"{counted(len(tasks), 'task')} on {node} may use {problem}"
            for node, tasks in by_node.items()
            if (problem := _too_few(tasks) or _too_few_for_gpus(tasks))
        ],
        "the tasks may use those that they were granted",
        WARNING,
    )


def _too_few(tasks: Sequence[CpuFacts]) -> str:
    """Returns how many CPUs a node's tasks may use of those granted, and what to do; or ''."""
    first = tasks[0]
    usable = {cpu for task in tasks for cpu in task.cpus}
    granted = max(first.granted, first.per_task * len(tasks))
    if len(usable) >= min(max(granted // 2 + 1, len(tasks)), granted, first.machine):
        return ""
    return (
        f"{counted(len(usable), 'CPU')} of its {first.machine}, but SLURM_CPUS_ON_NODE or "
        f"SLURM_CPUS_PER_TASK promises {granted}: srun --cpus-per-task="
        f"{max(1, granted // len(tasks))}, or export SRUN_CPUS_PER_TASK before srun. If srun "
        "has that option, another binding is in force: unset SLURM_CPU_BIND, which an outer "
        "step leaves, and start without taskset"
    )


def _too_few_for_gpus(tasks: Sequence[CpuFacts]) -> str:
    machine = tasks[0].machine
    if machine == 1 or not any(task.uses_gpus and len(task.cpus) == 1 for task in tasks):
        return ""
    return (
        f"1 CPU each of its {machine}, too few to feed a GPU: ask for more, sbatch "
        "--cpus-per-task=N"
    )
