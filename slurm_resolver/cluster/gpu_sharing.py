"""How the tasks of a node divide its GPUs, and what they need where several take the same."""

from __future__ import annotations

import re
from typing import Dict, Sequence, Tuple

from slurm_resolver.log import warn_once
from slurm_resolver.slurm.gpu_variables import Devices
from slurm_resolver.slurm.step import SlurmStep

_TASKS_PER_GPU = re.compile(r"gpu:(?:verbose,)?single:(\d{1,5})")
_GROWS_BY_ITSELF = "cuda_malloc_async"  # a value of TF_GPU_ALLOCATOR


def share_of(
    devices: Devices, local_rank: int, gpu_local_ranks: Sequence[int]
) -> Tuple[Devices, bool]:
    """Returns the devices of one task, and whether another task gets the same.

    All are used: three tasks get 3, 2 and 2 of 7 devices. Where there are more tasks than devices,
    each task gets one.
    """
    position, tasks, number = gpu_local_ranks.index(local_rank), len(gpu_local_ranks), len(devices)
    if tasks > number:
        warn_once(
            f"{tasks} tasks share the node's {number} GPU{'s' if number > 1 else ''}; start fewer "
            "tasks on each node, unless its memory is enough for all of them"
        )
        own = [other * number // tasks for other in range(tasks)]
        return (devices[own[position]],), own.count(own[position]) > 1
    each, remainder = divmod(number, tasks)
    first = position * each + min(position, remainder)
    return devices[first : first + each + (position < remainder)], False


def is_bound_with_another(step: SlurmStep, local_rank: int, gpu_local_ranks: Sequence[int]) -> bool:
    """Whether Slurm binds several tasks to a GPU (single:N), this one and another among them."""
    match = _TASKS_PER_GPU.search(step.tres_bind or "")
    tasks = max(1, int(match[1])) if match else 1
    return sum(other // tasks == local_rank // tasks for other in gpu_local_ranks) > 1


def memory_settings(step: SlurmStep, shares: bool) -> Dict[str, str]:
    """Returns the variables to set where a task shares its GPU with another; else {}.

    TensorFlow's first process on a GPU takes all of its memory, and the second one fails: so each
    takes only what it needs (``GPUBFCAllocator::GetAllowGrowthValue``). What the user has set
    stays, whatever it is.
    """
    return {SlurmStep.allow_growth.name: "true"} if shares and not memory_is_chosen(step) else {}


def memory_is_chosen(step: SlurmStep) -> bool:
    """Whether the user has set how much of a GPU's memory TensorFlow takes."""
    return step.allow_growth is not None or step.gpu_allocator == _GROWS_BY_ITSELF
