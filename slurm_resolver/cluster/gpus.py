"""Which GPUs a task uses, and why.

Where Slurm has bound devices to the task, it uses these. Where all tasks of the node see the same
devices, those that use GPUs divide them by SLURM_LOCALID. Devices keep the names that Slurm gave
them. What Slurm sets with which option of srun(1) was measured on live clusters.
"""

from __future__ import annotations

import re
from typing import Collection, Dict, Optional, Sequence, Tuple

from slurm_resolver.cluster.gpu_sharing import is_bound_with_another, memory_settings, share_of
from slurm_resolver.cluster.mig_slices import seen_by_cuda, usable_at_once
from slurm_resolver.cluster.task_gpus import TaskGpus, applied_value
from slurm_resolver.errors import GpuError
from slurm_resolver.log import warn_once
from slurm_resolver.slurm.gpu_variables import (
    Devices,
    VisibleDevices,
    count_driver_gpus,
    read_visible_devices,
)
from slurm_resolver.slurm.step import SlurmStep

# The values of --gpu-bind that give each task its own devices; others (none, closest) do not.
_BOUND = re.compile(r"gpu:(verbose,)?(per_task|single|map|mask)")
_CLOSEST = re.compile(r"gpu:(verbose,)?closest")
_UNBOUND = re.compile(r"gpu:(verbose,)?none")


JOB_WITHOUT_GPUS = "this job uses no GPU (gpu_jobs)"  # the source of their choice


def choose_gpus(
    step: SlurmStep,
    local_rank: int,
    gpu_local_ranks: Sequence[int],
    max_tasks_per_node: int,
    gpus_per_node: Optional[int] = None,
    gpus_per_task: Optional[int] = None,
    *,
    not_counted: Collection[int] = (),
) -> TaskGpus:
    """Returns the GPUs of the task with this local rank on its node.

    Args:
        step: the task's variables.
        local_rank: SLURM_LOCALID.
        gpu_local_ranks: the local ranks, ascending, of the tasks on this node that use GPUs.
        max_tasks_per_node: the most tasks that any node of the step has, of those that count.
        gpus_per_node: GPUs on each node, as in TensorFlow's resolver.
        gpus_per_task: GPUs of each task, as in TensorFlow's resolver; the task with local rank i
            uses the i-th slice of this size.
        not_counted: the local ranks of tasks that are none of those to whom `gpus_per_node` and
            `gpus_per_task` give slices: the tasks of a tf.data service.

    Raises:
        GpuError: for a value that is not a list of devices, more devices than Slurm granted, or
            counts that do not fit.
    """
    visible = read_visible_devices(step)
    counts = (max_tasks_per_node, gpus_per_node, gpus_per_task)
    gpus = _choose(step, visible, local_rank, gpu_local_ranks, *counts, not_counted)
    if gpus.devices and not gpus.settings and visible.is_misread:
        gpus = gpus._replace(settings=visible.settings_for(gpus.devices))
    if gpus.devices and step.shards_on_node is not None:  # other jobs use it as well
        gpus = gpus._replace(memory=memory_settings(step, True))
    return _keep_usable(gpus, visible)


def _keep_usable(gpus: TaskGpus, visible: VisibleDevices) -> TaskGpus:
    """Leaves out the MIG slices that the process cannot use."""
    gpus = gpus._replace(visible_before=seen_by_cuda(gpus.visible_before))
    usable = usable_at_once(gpus.devices or ())
    if not gpus.devices or usable == gpus.devices:
        return gpus
    warn_once(
        "tasks of this node have several MIG slices each, and CUDA shows a process only one: start "
        "as many tasks on each node as it has slices"
    )
    return gpus._replace(
        devices=usable,
        source=f"{gpus.source}, and CUDA shows a process only one MIG slice",
        settings=visible.settings_for(usable),
        slices=len(gpus.devices),
    )


def _choose(
    step: SlurmStep,
    visible: VisibleDevices,
    local_rank: int,
    gpu_local_ranks: Sequence[int],
    max_tasks_per_node: int,
    gpus_per_node: Optional[int],
    gpus_per_task: Optional[int],
    not_counted: Collection[int],
) -> TaskGpus:
    shown = visible.devices
    if step.gpus_applied is not None and step.gpus_applied == applied_value(step, shown or ()):
        source = f"{visible.name}, set by an earlier resolver of this task"
        return TaskGpus(shown, source, visible_before=shown)
    _check_grant(step, visible)
    if shown and _belong_to_batch_script(step):
        source = f"{visible.name} is the batch script's, and this component was granted none"
        return TaskGpus((), source, visible.settings_for(()), shown, same_for_all=True)
    if local_rank not in gpu_local_ranks:
        return _no_gpus(step, visible)
    if gpus_per_node is not None or gpus_per_task is not None:
        position = local_rank - sum(other < local_rank for other in not_counted)
        return _given_counts(
            step, visible, position, max_tasks_per_node, gpus_per_node, gpus_per_task
        )
    if shown is None:
        return _without_variable(step, visible, local_rank, gpu_local_ranks)
    if not shown:
        return TaskGpus((), f"{visible.name} shows none", visible_before=(), same_for_all=True)
    if _is_bound(step, shown):
        source = f"{visible.name}, bound to the task by Slurm"
        shares = is_bound_with_another(step, local_rank, gpu_local_ranks)
        if _CLOSEST.search(step.tres_bind or "") and len(gpu_local_ranks) > 1:
            # No variable says which tasks see the same GPUs.
            warn_once(
                "srun --gpu-bind=closest shows tasks of one socket the same GPUs, which they then "
                "share. To give each task its own, start with srun --gpu-bind=per_task:N, or "
                "without --gpu-bind"
            )
            shares = True
        memory = memory_settings(step, shares)
        return TaskGpus(shown, source, visible_before=shown, memory=memory)
    if len(gpu_local_ranks) == 1:
        source = f"{visible.name}, the only task on the node that uses GPUs"
        return TaskGpus(shown, source, visible_before=shown)
    devices, shares = share_of(shown, local_rank, gpu_local_ranks)
    return TaskGpus(
        devices,
        f"{visible.name} split by SLURM_LOCALID",
        _settings(visible, devices),
        shown,
        same_for_all=True,
        memory=memory_settings(step, shares),
    )


def _settings(visible: VisibleDevices, devices: Devices) -> Dict[str, str]:
    return {} if devices == visible.devices else visible.settings_for(devices)


def _check_grant(step: SlurmStep, visible: VisibleDevices) -> None:
    granted = step.gpus_on_node
    if granted is not None and visible.devices is not None and len(visible.devices) > granted:
        raise GpuError(
            f"{visible.text} shows {len(visible.devices)} GPUs, but SLURM_GPUS_ON_NODE={granted}: "
            "the others do not belong to this step. Unset the variable where it was exported, and "
            "let Slurm set it."
        )


def _belong_to_batch_script(step: SlurmStep) -> bool:
    """Whether the devices are those of the batch script, on another node.

    srun passes its own variables on, and Slurm sets or unsets them only on nodes with GPUs. A
    component of a heterogeneous job may run on nodes without.
    """
    granted = step.step_gpus is not None or step.gpus_on_node is not None
    return step.het_size is not None and step.job_gpus is not None and not granted


def _is_bound(step: SlurmStep, shown: Devices) -> bool:
    """Whether Slurm gave these devices to this task alone, and not to all tasks of the node."""
    if step.tres_bind is not None and _BOUND.search(step.tres_bind):
        return True
    if step.tres_bind is not None and _UNBOUND.search(step.tres_bind):
        return False  # and confined to more than it shows: all tasks are shown the same
    return step.gpus_on_node is not None and len(shown) < step.gpus_on_node


def _no_gpus(step: SlurmStep, visible: VisibleDevices) -> TaskGpus:
    source = JOB_WITHOUT_GPUS
    unknown = visible.devices is None and step.gpus_on_node is None
    devices = None if unknown else ()
    same = not (visible.devices and _is_bound(step, visible.devices))
    return TaskGpus(devices, source, visible.settings_for(()), visible.devices, same_for_all=same)


def _without_variable(
    step: SlurmStep, visible: VisibleDevices, local_rank: int, gpu_local_ranks: Sequence[int]
) -> TaskGpus:
    """Chooses where no variable shows devices: Slurm manages no GPUs here, or srun bound none."""
    number = count_driver_gpus()
    granted = step.gpus_on_node
    if granted is not None and granted != number:
        # Which of the driver's GPUs the step was granted is unknown.
        if granted:
            warn_once(
                f"SLURM_GPUS_ON_NODE={granted}, but {visible.name} is not set: this task cannot "
                "know which GPUs are its own. Start with srun --gpus-per-node, without "
                "--gpu-bind=none"
            )
        return TaskGpus(None if granted else (), f"{visible.name} is not set")
    if not number:
        return TaskGpus(None if number is None else (), f"{visible.name} is not set")
    devices = tuple(map(str, range(number)))
    if len(gpu_local_ranks) == 1:
        return TaskGpus(devices, "all that the driver shows", visible_before=devices)
    share, shares = share_of(devices, local_rank, gpu_local_ranks)
    return TaskGpus(
        share,
        "what the driver shows, split by SLURM_LOCALID",
        _settings(visible, share),
        devices,
        same_for_all=True,
        memory=memory_settings(step, shares),
    )


def _given_counts(
    step: SlurmStep,
    visible: VisibleDevices,
    position: int,
    max_tasks_per_node: int,
    gpus_per_node: Optional[int],
    gpus_per_task: Optional[int],
) -> TaskGpus:
    for name, value in (("gpus_per_node", gpus_per_node), ("gpus_per_task", gpus_per_task)):
        if value is not None and (not isinstance(value, int) or value < 0):
            raise GpuError(f"{name}={value!r}: expected a whole number of GPUs, 0 or more.")
    shown = visible.devices or ()
    granted = step.gpus_on_node
    if gpus_per_node is None:
        gpus_per_node = max(len(shown), granted or 0)
    elif granted is not None and gpus_per_node > granted:
        raise GpuError(
            f"gpus_per_node={gpus_per_node}, but SLURM_GPUS_ON_NODE={granted}. Ask Slurm for more "
            "(srun --gpus-per-node), or leave gpus_per_node out to use what it granted."
        )
    if gpus_per_task is None:
        gpus_per_task = gpus_per_node // max_tasks_per_node
    if gpus_per_task * max_tasks_per_node > gpus_per_node:
        raise GpuError(
            f"gpus_per_task={gpus_per_task} and up to {max_tasks_per_node} tasks on a node need "
            f"{gpus_per_task * max_tasks_per_node} GPUs, but the node has {gpus_per_node}. "
            "Ask Slurm for more (srun --gpus-per-node), or start fewer tasks on each node."
        )
    if shown and len(shown) < gpus_per_node:
        if len(shown) == gpus_per_task:
            source = f"{visible.name}, bound to the task by Slurm"
            return TaskGpus(shown, source, visible_before=shown, counts_given=True)
        raise GpuError(
            f"gpus_per_node={gpus_per_node} and gpus_per_task={gpus_per_task}, but {visible.text} "
            f"has {len(shown)}. Leave both out to use what Slurm granted."
        )
    # Counts index the visible devices where there are any: the second GPU of 4,5 is 5.
    names: Tuple[str, ...] = shown or tuple(map(str, range(gpus_per_node)))
    devices = names[position * gpus_per_task : (position + 1) * gpus_per_task]
    source = "gpus_per_node and gpus_per_task"
    settings = _settings(visible, devices)
    return TaskGpus(
        devices, source, settings, visible.devices, counts_given=True, same_for_all=True
    )
