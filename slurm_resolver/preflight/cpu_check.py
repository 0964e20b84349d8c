"""Whether the CPUs that each task may use suffice.

TensorFlow starts a thread for each CPU that the process may use (sched_getaffinity). A task that is
bound to one CPU of many trains slowly without a message.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.wording import counted


def cpu_problem(step: SlurmStep, cpus: Sequence[Sequence[int]], uses_gpus: bool) -> str:
    """Returns what is wrong with the CPUs of a node, and what to do; '' if nothing is.

    Args:
        step: as a task of the node sees it.
        cpus: those that each task of the node may use.
        uses_gpus: whether these tasks use GPUs.
    """
    tasks = len(cpus)
    machine = os.cpu_count() or 1
    usable = len({cpu for of_task in cpus for cpu in of_task})
    granted = max(step.cpus_on_node or 0, (step.cpus_per_task or 0) * tasks)
    if usable < min(max(granted // 2 + 1, tasks), granted, machine):
        return (
            f"the {counted(tasks, 'task')} of this node may use {counted(usable, 'CPU')} of its "
            f"{machine}, but SLURM_CPUS_ON_NODE or SLURM_CPUS_PER_TASK promises {granted}: srun "
            f"--cpus-per-task={max(1, granted // tasks)}, or export SRUN_CPUS_PER_TASK before "
            "srun. If srun has that option, another binding is in force: unset SLURM_CPU_BIND, "
            "which an outer step leaves, and start without taskset"
        )
    if uses_gpus and machine > 1 and min(map(len, cpus)) == 1:
        return (
            f"one CPU of the node's {machine} for a task is too few to feed a GPU: ask for more, "
            "sbatch --cpus-per-task=N"
        )
    return ""
