"""Which GPUs a task uses, and the variables that show its process these and no others.

A task uses the devices that Slurm has bound to it. If all tasks of the node see the same devices,
the tasks that use GPUs divide them by SLURM_LOCALID. The effect of each option of srun(1) was
measured on live clusters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple

from slurm_resolver.cluster.jobs import jobs_with_gpus
from slurm_resolver.cluster.layout import Layout
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.roles import Roles, ranks_of
from slurm_resolver.errors import GpuError
from slurm_resolver.log import warn_once
from slurm_resolver.slurm.gpu_variables import (
    Devices,
    VisibleDevices,
    count_driver_gpus,
    numbered,
    read_visible_devices,
)
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.whole_number import whole_number

# How srun binds tasks to GPUs (SLURMD_TRES_BIND), and with "single" how many tasks to each.
_BIND = re.compile(r"gpu:(?:verbose,)?(none|closest|per_task|map|mask|single(?::([1-9]\d{0,4}))?)")

JOB_WITHOUT_GPUS = "this job uses no GPU (gpu_jobs)"  # a TaskGpus.source
_SLICE = "MIG-"  # the UUID of a slice of a GPU begins so


class TaskGpus(NamedTuple):
    """The GPUs of one task.

    Attributes:
        devices: named as in the variable that shows them; () for none; None if unknown.
        source: the reason, as `slurm-resolver show` prints it.
        settings: the variables to set so that the process sees only these; {} to change nothing.
        visible_before: the devices that the process sees without the settings; None if unknown.
        counts_given: whether the caller gave gpus_per_node or gpus_per_task.
        same_for_all: whether all tasks of the node see the same devices.
        shared: whether another task is known to use one of the devices as well, and the user has
            not set how TensorFlow takes a GPU's memory.
        conflict: how the variables contradict what Slurm shows this task; "" if they do not.
    """

    devices: Devices | None = None
    source: str = ""
    settings: Mapping[str, str] = {}
    visible_before: Devices | None = None
    counts_given: bool = False
    same_for_all: bool = False
    shared: bool = False
    conflict: str = ""

    def visible_devices(self, applied: bool) -> Devices | None:
        """Returns the devices that this process sees with or without the settings.

        None if unknown. A caller who gives counts ensures that the process sees that many.
        """
        return self.devices if applied or self.counts_given else self.visible_before


class NodeGpus(NamedTuple):
    """Everything that determines the GPUs of a task.

    Attributes:
        step: the variables of this task.
        local_rank: the task's local rank on its node.
        users: the local ranks, ascending, of the tasks on this node that use GPUs.
        most_users: the largest number of tasks that use GPUs on any node of the step.
        gpus_per_node, gpus_per_task: as in TensorFlow's resolver; the i-th task that uses GPUs gets
            the i-th slice of `gpus_per_task` devices.
    """

    step: SlurmStep
    local_rank: int
    users: Sequence[int]
    most_users: int
    gpus_per_node: int | None = None
    gpus_per_task: int | None = None


def choose_gpus(step: SlurmStep, layout: Layout, roles: Roles, options: ClusterOptions) -> TaskGpus:
    """Returns the GPUs of this task.

    Raises:
        GpuError: for a value that is not a list of devices, more devices than Slurm granted, or
            counts that do not fit.
        JobsError: for a name in `gpu_jobs` that is not the name of a job.
    """
    rank = step.require(SlurmStep.rank)
    counts_given = options.gpus_per_node is not None or options.gpus_per_task is not None
    jobs = jobs_with_gpus(roles, options.gpu_jobs, options.jobs or (), counts_given)
    without = set(ranks_of(roles, set(roles).difference(jobs)))
    ranks = layout.ranks_on(layout.node_of[rank])
    users = [local_rank for local_rank, other in enumerate(ranks) if other not in without]
    most_users = 1
    if counts_given:
        nodes = (node for rank, node in enumerate(layout.node_of) if rank not in without)
        most_users = max(Counter(nodes).values(), default=1)
    return gpus_on_node(
        NodeGpus(
            step=step,
            local_rank=layout.local_rank_of[rank],
            users=users,
            most_users=most_users,
            gpus_per_node=options.gpus_per_node,
            gpus_per_task=options.gpus_per_task,
        )
    )


def gpus_on_node(node: NodeGpus) -> TaskGpus:
    """Returns the GPUs of one task on its node, as `choose_gpus`."""
    step = node.step
    visible = read_visible_devices(step)
    if step.gpus_applied == _mark_of(step, visible.devices or ()):
        gpus = TaskGpus(visible.devices, f"{visible.name}, set by an earlier resolver of this task")
    else:
        gpus = _choose(node, visible)
        conflict = _find_conflict(node, visible, gpus)
        if conflict:
            warn_once(conflict)
            gpus = gpus._replace(
                conflict=conflict, source=f"{visible.name}, which Slurm did not set this way"
            )
    settings = gpus.settings
    if gpus.devices and not settings and visible.is_misread:
        settings = visible.settings_for(gpus.devices)
    # Other jobs use a GPU with shards as well.
    shared = gpus.shared or (bool(gpus.devices) and step.shards_on_node is not None)
    chosen = step.allow_growth is not None or step.gpu_allocator == "cuda_malloc_async"
    gpus = gpus._replace(
        settings=settings,
        visible_before=gpus.visible_before or visible.devices,
        shared=shared and not chosen,
    )
    return _keep_usable(gpus, visible)


def _choose(node: NodeGpus, visible: VisibleDevices) -> TaskGpus:
    step = node.step
    shown = visible.devices or ()
    granted = step.gpus_on_node
    if granted is not None and len(shown) > granted:
        raise GpuError(
            f"{visible.text} shows {len(shown)} GPUs, but SLURM_GPUS_ON_NODE={granted}: the "
            "others do not belong to this step. Unset the variable where it was exported, and let "
            "Slurm set it."
        )
    # Slurm changes these variables only on nodes with GPUs, and a component of a heterogeneous job
    # may run on nodes without. Then they show the devices of the batch script, on another node.
    has_none = step.het_size is not None and not step.step_gpus and granted is None
    if shown and has_none and step.job_gpus:
        return TaskGpus(
            devices=(),
            source=f"{visible.name} is the batch script's, and this component was granted none",
            settings=visible.settings_for(()),
            same_for_all=True,
        )
    # Whether Slurm shows these devices to this task only, not to all tasks of the node.
    is_bound = granted is not None and len(shown) < granted
    bind = _BIND.search(step.tres_bind or "")
    if bind and bind[1] != "closest":
        is_bound = bind[1] != "none"
    if node.local_rank not in node.users:
        return TaskGpus(
            devices=None if visible.devices is None and granted is None else (),
            source=JOB_WITHOUT_GPUS,
            settings=visible.settings_for(()),
            same_for_all=not (shown and is_bound),
        )
    if node.gpus_per_node is not None or node.gpus_per_task is not None:
        return _by_given_counts(node, visible)
    if visible.devices is None:
        return _without_variable(node, visible)
    if not shown:
        return TaskGpus((), f"{visible.name} shows none", same_for_all=True)
    if is_bound:
        return _bound(node, visible, bind)
    if len(node.users) == 1:
        return TaskGpus(shown, f"{visible.name}, the only task on the node that uses GPUs")
    return _share(node, visible, shown, f"{visible.name} split by SLURM_LOCALID")


def _find_conflict(node: NodeGpus, visible: VisibleDevices, gpus: TaskGpus) -> str:
    """Returns how the variables contradict what Slurm shows this task; "" if they do not.

    SLURM_STEP_GPUS has what Slurm shows (live, 22.05 to 26.05). Where the site confines tasks to
    their GPUs, it numbers them differently from the variables, whose numbers then begin at 0.
    """
    text = node.step.step_gpus
    granted = node.step.gpus_on_node
    shown = visible.devices or ()
    if node.local_rank not in node.users:
        return ""
    if granted and not shown and not gpus.devices and not gpus.counts_given:
        lack = "is not set: this task cannot know which GPUs are its own"
        if visible.devices is not None:
            lack = "shows none: this task uses no GPU"
        remedy = "Start with srun --gpus-per-node, without --gpu-bind=none"
        if text:
            remedy = f"Slurm has set it: SLURM_STEP_GPUS={text}. Keep what srun sets"
        return f"SLURM_GPUS_ON_NODE={granted}, but {visible.name} {lack}. {remedy}"
    # UUIDs cannot be compared with numbers.
    if not text or not "".join(shown).isdigit():
        return ""
    slurms = tuple(text.split(","))
    part = _parts(len(slurms), len(node.users))[node.users.index(node.local_rank)]
    for devices in (slurms, numbered(slurms)):
        if shown in (devices, devices[part]):  # or the share, which a script may have chosen
            return ""
    return (
        f"{visible.text}, but Slurm shows this task SLURM_STEP_GPUS={text}: something sets "
        f"{visible.name} after srun, and tasks may share a GPU while others are idle. Remove that "
        "line of the program or script: each task then takes its own GPUs"
    )


def _bound(node: NodeGpus, visible: VisibleDevices, bind: re.Match[str] | None) -> TaskGpus:
    tasks = int(bind[2] or 1) if bind else 1
    shares = sum(other // tasks == node.local_rank // tasks for other in node.users) > 1
    if bind and bind[1] == "closest" and len(node.users) > 1:
        # No variable shows which tasks see the same GPUs.
        warn_once(
            "srun --gpu-bind=closest shows tasks of one socket the same GPUs, which they then "
            "share. To give each task its own, start with srun --gpu-bind=per_task:N, or "
            "without --gpu-bind"
        )
        shares = True
    return TaskGpus(visible.devices, f"{visible.name}, bound to the task by Slurm", shared=shares)


def _share(node: NodeGpus, visible: VisibleDevices, devices: Devices, source: str) -> TaskGpus:
    """Divides all devices of the node among the tasks that use GPUs.

    Three tasks get 3, 2 and 2 of 7 devices. If there are more tasks than devices, each gets one.
    """
    tasks = len(node.users)
    number = len(devices)
    if tasks > number:
        warn_once(
            f"{tasks} tasks share the node's {number} GPU{'s' * (number > 1)}; start fewer "
            "tasks on each node, unless the GPUs' memory is enough for all of them"
        )
    parts = _parts(number, tasks)
    part = parts[node.users.index(node.local_rank)]
    own = devices[part]
    return TaskGpus(
        devices=own,
        source=source,
        settings=_settings(visible, own),
        visible_before=devices,
        same_for_all=True,
        shared=parts.count(part) > 1,
    )


def _parts(number: int, tasks: int) -> list[slice]:
    """Returns which of `number` devices each task gets."""
    if tasks > number:
        return [slice(i * number // tasks, i * number // tasks + 1) for i in range(tasks)]
    each, more = divmod(number, tasks)
    bounds = [i * each + min(i, more) for i in range(tasks + 1)]
    return list(map(slice, bounds, bounds[1:]))


def _settings(visible: VisibleDevices, devices: Devices) -> dict[str, str]:
    return {} if devices == visible.devices else visible.settings_for(devices)


def _without_variable(node: NodeGpus, visible: VisibleDevices) -> TaskGpus:
    """Chooses where no variable is set: Slurm manages no GPUs here, or srun bound none."""
    step = node.step
    is_copy = step.node_name is not None and not step.is_live
    number = None if is_copy else count_driver_gpus()  # another task's driver is not known
    granted = step.gpus_on_node
    if granted is not None and granted != number:
        # Which of the driver's GPUs the step was granted is unknown.
        number = None if granted else 0
    if not number:
        return TaskGpus(None if number is None else (), f"{visible.name} is not set")
    devices = tuple(map(str, range(number)))
    if len(node.users) == 1:
        return TaskGpus(devices, "all that the driver shows", visible_before=devices)
    return _share(node, visible, devices, "what the driver shows, split by SLURM_LOCALID")


def _by_given_counts(node: NodeGpus, visible: VisibleDevices) -> TaskGpus:
    per_node = node.gpus_per_node
    per_task = node.gpus_per_task
    most = node.most_users
    for name in ("gpus_per_node", "gpus_per_task"):
        value = getattr(node, name)
        if value is not None and whole_number(value) is None:
            raise GpuError(f"{name}={value!r}: expected a whole number of GPUs, 0 or more.")
    shown = visible.devices or ()
    granted = node.step.gpus_on_node
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
            f"gpus_per_task={per_task} times the largest number of tasks on a node ({most}) is "
            f"{per_task * most}, more than the GPUs of a node ({per_node}). Ask Slurm for more "
            "(srun --gpus-per-node), or start fewer tasks on each node."
        )
    if shown and len(shown) < per_node:
        if len(shown) != per_task:
            raise GpuError(
                f"gpus_per_node={per_node} and gpus_per_task={per_task}, but {visible.text} has "
                f"{len(shown)}. Leave both out to use what Slurm granted."
            )
        return TaskGpus(shown, f"{visible.name}, bound to the task by Slurm", counts_given=True)
    # Counts index the visible devices where there are any: the second GPU of 4,5 is 5.
    names = shown or tuple(map(str, range(per_node)))
    position = node.users.index(node.local_rank)
    devices = names[position * per_task : (position + 1) * per_task]
    return TaskGpus(
        devices=devices,
        source="gpus_per_node and gpus_per_task",
        settings=_settings(visible, devices),
        counts_given=True,
        same_for_all=True,
    )


def apply_gpus(gpus: TaskGpus, step: SlurmStep, environ: MutableMapping[str, str]) -> None:
    """Writes the settings into `environ`, and a mark that this task has applied them.

    TensorFlow's first process on a GPU takes all of its memory, and the second one fails. So tasks
    that share a GPU take only what they need (``GPUBFCAllocator::GetAllowGrowthValue``).
    """
    if gpus.shared:
        environ[SlurmStep.allow_growth.name] = "true"
        warn_once(
            f"{SlurmStep.allow_growth.name}=true is set, as this task shares its GPU: otherwise "
            "TensorFlow would take all of the memory at once, and the next task would find none; "
            "set the variable yourself to choose"
        )
    if gpus.settings:
        environ.update(gpus.settings)
        environ[SlurmStep.gpus_applied.name] = _mark_of(step, gpus.devices or ())


def _mark_of(step: SlurmStep, devices: Devices) -> str:
    """Returns the mark: the devices, and the task, as steps started from this one inherit it."""
    return f"{step.job_id}.{step.step_id}.{step.rank}:{','.join(devices)}"


def _keep_usable(gpus: TaskGpus, visible: VisibleDevices) -> TaskGpus:
    """Leaves out the MIG slices that the process cannot use.

    CUDA shows a process either whole GPUs or one slice ("CUDA Device Enumeration" in NVIDIA's
    Multi-Instance GPU User Guide). So a task takes its whole GPUs, or its first slice.
    """
    slices = [device for device in gpus.visible_before or () if device.startswith(_SLICE)]
    if not slices:
        return gpus
    devices = gpus.devices or ()
    whole = tuple(device for device in devices if not device.startswith(_SLICE))
    usable = whole or devices[:1]
    if usable != devices:
        warn_once(
            "tasks of this node have several MIG slices each, and CUDA shows a process only one: "
            "start as many tasks on each node as it has slices"
        )
        gpus = gpus._replace(
            devices=usable,
            source=f"{gpus.source}, and CUDA shows a process only one MIG slice",
            settings=visible.settings_for(usable),
        )
    return gpus._replace(visible_before=(slices[0],))
