"""Which GPUs a task uses, and why.

Where Slurm has bound devices to the task, it uses these. Where all tasks of the node see the same
devices, those that use GPUs divide them by SLURM_LOCALID. Devices keep the names that Slurm gave
them. What Slurm sets with which option of srun(1) was measured on live clusters.
"""

from __future__ import annotations

import re
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.cluster.task_gpus import TaskGpus, keep_usable, mark_of, memory_settings
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
_TASKS_PER_GPU = re.compile(r"gpu:(?:verbose,)?single:(\d{1,5})")

JOB_WITHOUT_GPUS = "this job uses no GPU (gpu_jobs)"  # the source of their choice


class NodeGpus(NamedTuple):
    """What one task knows of its node, from which the GPUs of the tasks there follow.

    Attributes:
        step: the variables of this task.
        users: the local ranks, ascending, of the tasks on this node that use GPUs.
        ranks: the ranks on the node, ``ranks[local_rank]``.
        most_users: the most tasks that use GPUs on any node of the step.
        gpus_per_node: GPUs on each node, as in TensorFlow's resolver.
        gpus_per_task: GPUs of each task, as in TensorFlow's resolver; the i-th task that uses GPUs
            gets the i-th slice of this size.
    """

    step: SlurmStep
    users: Sequence[int]
    ranks: Sequence[int] = ()
    most_users: int = 1
    gpus_per_node: Optional[int] = None
    gpus_per_task: Optional[int] = None

    def by_rank(self, own: TaskGpus) -> Dict[int, TaskGpus]:
        """Returns the GPUs of every task on the node; those of this task are `own`."""
        gpus = {}
        for local_rank, rank in enumerate(self.ranks):
            if rank == self.step.rank:
                gpus[rank] = own
            elif local_rank in self.users and not own.same_for_all:
                gpus[rank] = TaskGpus(None, "known to the task alone")
            else:
                other = self._replace(step=self.step.replace(rank=rank, gpus_applied=None))
                gpus[rank] = choose_gpus(other, local_rank)
        return gpus


def choose_gpus(node: NodeGpus, local_rank: int) -> TaskGpus:
    """Returns the GPUs of the task with this local rank on its node.

    Raises:
        GpuError: for a value that is not a list of devices, more devices than Slurm granted, or
            counts that do not fit.
    """
    visible = read_visible_devices(node.step)
    gpus = _choose(node, visible, local_rank)
    if gpus.devices and node.step.shards_on_node is not None:  # other jobs use it as well
        gpus = gpus._replace(memory=memory_settings(node.step))
    return keep_usable(gpus, visible)


def _choose(node: NodeGpus, visible: VisibleDevices, local_rank: int) -> TaskGpus:
    step, shown = node.step, visible.devices
    if step.gpus_applied is not None and step.gpus_applied == mark_of(step, shown or ()):
        source = f"{visible.name}, set by an earlier resolver of this task"
        return TaskGpus(shown, source, visible_before=shown)
    granted = step.gpus_on_node
    if granted is not None and len(shown or ()) > granted:
        raise GpuError(
            f"{visible.text} shows {len(shown or ())} GPUs, but SLURM_GPUS_ON_NODE={granted}: the "
            "others do not belong to this step. Unset the variable where it was exported, and let "
            "Slurm set it."
        )
    if shown and _belong_to_batch_script(step):
        source = f"{visible.name} is the batch script's, and this component was granted none"
        return TaskGpus((), source, visible.settings_for(()), shown, same_for_all=True)
    if local_rank not in node.users:
        devices = None if shown is None and granted is None else ()
        same = not (shown and _is_bound(step, shown))
        settings = visible.settings_for(())
        return TaskGpus(devices, JOB_WITHOUT_GPUS, settings, shown, same_for_all=same)
    if node.gpus_per_node is not None or node.gpus_per_task is not None:
        return _by_given_counts(node, visible, local_rank)
    if shown is None:
        return _without_variable(node, visible, local_rank)
    if not shown:
        return TaskGpus((), f"{visible.name} shows none", visible_before=(), same_for_all=True)
    if _is_bound(step, shown):
        return _bound(node, visible, local_rank)
    if len(node.users) == 1:
        source = f"{visible.name}, the only task on the node that uses GPUs"
        return TaskGpus(shown, source, visible_before=shown)
    return _share(node, visible, shown, local_rank, f"{visible.name} split by SLURM_LOCALID")


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


def _bound(node: NodeGpus, visible: VisibleDevices, local_rank: int) -> TaskGpus:
    bind = node.step.tres_bind or ""
    match = _TASKS_PER_GPU.search(bind)  # Slurm may bind several tasks to a GPU (single:N)
    tasks = max(1, int(match[1])) if match else 1
    shares = sum(other // tasks == local_rank // tasks for other in node.users) > 1
    if _CLOSEST.search(bind) and len(node.users) > 1:
        # No variable says which tasks see the same GPUs.
        warn_once(
            "srun --gpu-bind=closest shows tasks of one socket the same GPUs, which they then "
            "share. To give each task its own, start with srun --gpu-bind=per_task:N, or "
            "without --gpu-bind"
        )
        shares = True
    return TaskGpus(
        visible.devices,
        f"{visible.name}, bound to the task by Slurm",
        visible_before=visible.devices,
        memory=memory_settings(node.step) if shares else {},
    )


def _share(
    node: NodeGpus, visible: VisibleDevices, devices: Devices, local_rank: int, source: str
) -> TaskGpus:
    """Divides devices that all tasks of the node see among those that use GPUs.

    All are used: three tasks get 3, 2 and 2 of 7 devices. Where there are more tasks than devices,
    each task gets one.
    """
    position, tasks, number = node.users.index(local_rank), len(node.users), len(devices)
    shares = False
    if tasks > number:
        warn_once(
            f"{tasks} tasks share the node's {number} GPU{'s' if number > 1 else ''}; start fewer "
            "tasks on each node, unless its memory is enough for all of them"
        )
        device_of = [other * number // tasks for other in range(tasks)]
        own: Devices = (devices[device_of[position]],)
        shares = device_of.count(device_of[position]) > 1
    else:
        each, remainder = divmod(number, tasks)
        first = position * each + min(position, remainder)
        own = devices[first : first + each + (position < remainder)]
    return TaskGpus(
        own,
        source,
        _settings(visible, own),
        devices,
        same_for_all=True,
        memory=memory_settings(node.step) if shares else {},
    )


def _settings(visible: VisibleDevices, devices: Devices) -> Dict[str, str]:
    return {} if devices == visible.devices else visible.settings_for(devices)


def _without_variable(node: NodeGpus, visible: VisibleDevices, local_rank: int) -> TaskGpus:
    """Chooses where no variable shows devices: Slurm manages no GPUs here, or srun bound none."""
    number = count_driver_gpus()
    granted = node.step.gpus_on_node
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
    if len(node.users) == 1:
        return TaskGpus(devices, "all that the driver shows", visible_before=devices)
    source = "what the driver shows, split by SLURM_LOCALID"
    return _share(node, visible, devices, local_rank, source)


def _by_given_counts(node: NodeGpus, visible: VisibleDevices, local_rank: int) -> TaskGpus:
    per_node, per_task, most = node.gpus_per_node, node.gpus_per_task, node.most_users
    for name, value in (("gpus_per_node", per_node), ("gpus_per_task", per_task)):
        if value is not None and (not isinstance(value, int) or value < 0):
            raise GpuError(f"{name}={value!r}: expected a whole number of GPUs, 0 or more.")
    shown, granted = visible.devices or (), node.step.gpus_on_node
    if per_node is None:
        per_node = max(len(shown), granted or 0)
    elif granted is not None and per_node > granted:
        raise GpuError(
            f"gpus_per_node={per_node}, but SLURM_GPUS_ON_NODE={granted}. Ask Slurm for more "
            "(srun --gpus-per-node), or leave gpus_per_node out to use what it granted."
        )
    if per_task is None:
        per_task = per_node // most
    if per_task * most > per_node:
        raise GpuError(
            f"gpus_per_task={per_task} and up to {most} tasks on a node need {per_task * most} "
            f"GPUs, but the node has {per_node}. Ask Slurm for more (srun --gpus-per-node), or "
            "start fewer tasks on each node."
        )
    if shown and len(shown) < per_node:
        if len(shown) != per_task:
            raise GpuError(
                f"gpus_per_node={per_node} and gpus_per_task={per_task}, but {visible.text} has "
                f"{len(shown)}. Leave both out to use what Slurm granted."
            )
        source = f"{visible.name}, bound to the task by Slurm"
        return TaskGpus(shown, source, visible_before=shown, counts_given=True)
    # Counts index the visible devices where there are any: the second GPU of 4,5 is 5.
    names: Tuple[str, ...] = shown or tuple(map(str, range(per_node)))
    position = node.users.index(local_rank)
    devices = names[position * per_task : (position + 1) * per_task]
    return TaskGpus(
        devices,
        "gpus_per_node and gpus_per_task",
        _settings(visible, devices),
        visible.devices,
        counts_given=True,
        same_for_all=True,
    )
