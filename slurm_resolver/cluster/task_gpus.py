"""Which GPUs a task uses, and the variables that show its process these and no others.

A task uses the devices that Slurm has bound to it. If all tasks of the node see the same devices,
the tasks that use GPUs divide them by SLURM_LOCALID. The effect of each option of srun(1) was
measured on live clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple

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
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.slurm.whole_number import whole_number
from slurm_resolver.wording import counted


class TaskGpus(NamedTuple):
    """The GPUs of one task.

    Attributes:
        devices: named as in the variable that shows them; () for none; None if unknown.
        source: the reason, as `slurm-resolver show` prints it.
        settings: the variables to set so that the process sees only these; {} to change nothing.
        visible_before: the devices that the process sees without the settings; None if unknown.
        shared: whether another task is known to use one of the devices as well, and the user has
            not set how TensorFlow takes a GPU's memory.
        conflict: how the variables contradict what Slurm shows this task; "" if they do not.
    """

    devices: Devices | None = None
    source: str = ""
    settings: Mapping[str, str] = {}
    visible_before: Devices | None = None
    shared: bool = False
    conflict: str = ""


def choose_gpus(step: SlurmStep, layout: Layout, roles: Roles, options: ClusterOptions) -> TaskGpus:
    """Returns the GPUs of this task.

    By default a ParameterServerStrategy's parameter servers and coordinator (the chief) use none.
    If the caller gave numbers of GPUs, all jobs use GPUs as in TensorFlow's own resolver.

    Raises:
        GpuError: for a value that is not a list of devices, more devices than Slurm granted, or
            counts that do not fit.
    """
    rank = step.require(SlurmStep.rank)
    jobs_without: set[str] = set()
    if options.gpu_jobs is not None:
        jobs_without = {*roles} - {*options.gpu_jobs}
    elif "ps" in roles and not options.gives_gpu_counts:
        jobs_without = {"ps", "chief"}
    without = ranks_of(roles, jobs_without)  # in a large step these are few
    on_node = layout.ranks_on(layout.node_of[rank])
    users = [local_rank for local_rank, other in enumerate(on_node) if other not in without]
    return gpus_on_node(step, layout.local_rank_of[rank], users, options)


def gpus_on_node(
    step: SlurmStep,
    local_rank: int,
    users: Sequence[int],
    options: ClusterOptions,
) -> TaskGpus:
    """Returns the GPUs of the task with this local rank, as `choose_gpus`.

    `users` are the local ranks, ascending, of the tasks on this node that use GPUs.
    """
    visible = read_visible_devices(step)
    is_user = local_rank in users
    if is_user and visible.devices is None and not options.gives_gpu_counts:
        visible = visible._replace(devices=_ask_driver(step))
    if step.gpus_applied == _mark_of(step, visible.devices or ()):
        gpus = TaskGpus(visible.devices, f"{visible.name}, set by an earlier resolver of this task")
    elif not is_user:
        gpus = TaskGpus((), "this job uses no GPU (gpu_jobs)")
    else:
        gpus = _choose(step, visible, users.index(local_rank), len(users), options)
    if gpus.devices is None:
        return gpus
    # CUDA shows a process either whole GPUs or one slice ("CUDA Device Enumeration" in NVIDIA's
    # Multi-Instance GPU User Guide).
    devices = _usable(gpus.devices)
    if devices != gpus.devices:
        warn_once(
            "tasks of this node have several MIG slices each, and CUDA shows a process only one: "
            "start as many tasks on each node as it has slices"
        )
    # Other jobs use a GPU with shards as well.
    shared = gpus.shared or bool(devices and step.shards_on_node)
    return gpus._replace(
        devices=devices,
        settings=visible.settings_for(devices),
        visible_before=visible.devices and _usable(visible.devices),
        shared=shared and step.allow_growth is None,
    )


def _usable(devices: Devices) -> Devices:
    """Returns the devices that a process can use: the whole GPUs, or the first MIG slice."""
    return tuple(device for device in devices if not device.startswith("MIG-")) or devices[:1]


def _ask_driver(step: SlurmStep) -> Devices | None:
    """Returns the GPUs of a task where no variable is set; None if they are unknown.

    Slurm manages no GPUs here, or srun bound none.
    """
    granted = step.gpus_on_node
    if granted == 0:
        return ()
    if step.node_name and not step.is_live:
        return None  # another task's driver is not known
    number = count_driver_gpus()
    # Which of the driver's GPUs the step was granted is unknown if it was granted only some.
    if number is None or granted not in (None, number):
        return None
    return tuple(map(str, range(number)))


def _choose(
    step: SlurmStep,
    visible: VisibleDevices,
    position: int,
    tasks: int,
    options: ClusterOptions,
) -> TaskGpus:
    """Returns the GPUs of the task with this position among those of its node that use some.

    Only `gpus_on_node` adds what follows from them.
    """
    shown = visible.devices or ()
    granted = step.gpus_on_node
    if granted is not None and len(shown) > granted:
        raise GpuError(
            f"{visible.text} shows {len(shown)} GPUs, but SLURM_GPUS_ON_NODE={granted}: the "
            "others do not belong to this step. Unset the variable where it was exported, and let "
            "Slurm set it."
        )
    # Slurm changes the batch script's variables only on nodes with GPUs, and a component of a
    # heterogeneous job may run on nodes without.
    is_inherited = granted is None and not step.step_gpus and step.het_size is not None
    if is_inherited and step.job_gpus and visible.shown:
        return TaskGpus((), f"{visible.name} is the batch script's, and there are none here")
    binding = step.gpu_binding
    is_bound = binding != "none"
    if binding in (None, "", "closest"):
        is_bound = len(shown) < (granted or 0)
    source = visible.name if visible.shown else "the driver's GPUs"
    if options.gives_gpu_counts:
        gpus = _by_given_counts(step, visible, position, tasks, options)
    elif not shown:
        text = f"{visible.name} shows none" if visible.shown else visible.text
        gpus = TaskGpus(visible.devices, text)
    elif is_bound and visible.shown:
        # With these, no variable shows which tasks see the same GPUs.
        may_share = tasks > 1 and binding in ("closest", "single")
        gpus = TaskGpus(shown, f"{source}, bound to the task by Slurm", shared=may_share)
    elif tasks == 1:
        gpus = TaskGpus(shown, f"{source}, the only task on the node that uses GPUs")
    else:
        if len(shown) % tasks:
            warn_once(
                f"{tasks} tasks share the node's {counted(len(shown), 'GPU')}; start one for "
                "each GPU: TensorFlow's strategies need the same number of GPUs in each worker, "
                "and tasks that share a GPU share its memory"
            )
        gpus = TaskGpus(
            shown[_share(len(shown), position, tasks)],
            f"{source} split by SLURM_LOCALID",
            shared=tasks > len(shown),
        )
    conflict = ""
    if shown or not options.gives_gpu_counts:
        conflict = _find_conflict(step, visible, gpus, position, tasks)
    if not conflict:
        return gpus
    warn_once(conflict)
    return gpus._replace(
        conflict=conflict,
        source=f"{visible.name}, which Slurm did not set this way",
    )


def _by_given_counts(
    step: SlurmStep,
    visible: VisibleDevices,
    position: int,
    tasks: int,
    options: ClusterOptions,
) -> TaskGpus:
    """Returns the task's GPUs if the caller gave the number on each node, of each task, or both."""
    shown = visible.devices or ()
    granted = step.gpus_on_node
    given = (options.gpus_per_node, options.gpus_per_task)
    per_node, per_task = map(whole_number, given)
    are_counts = (per_node, per_task) == given
    if per_node is None:
        per_node = max(len(shown), granted or 0)
    if per_task is None:
        per_task = per_node // tasks
    # Counts index the visible devices where there are any: the second GPU of 4,5 is 5.
    devices = shown or tuple(map(str, range(per_node)))
    if len(devices) >= per_node:  # else Slurm has bound them to the task
        first = position * per_task
        devices = devices[first : first + per_task]
    if (
        not are_counts
        or per_task * tasks > per_node
        or (granted is not None and per_node > granted)
        or len(devices) != per_task
    ):
        raise GpuError(
            f"gpus_per_node={given[0]!r} and gpus_per_task={given[1]!r} do not fit: "
            f"SLURM_GPUS_ON_NODE={granted}, {visible.text}, and {tasks} tasks of this node use "
            "GPUs. Give whole numbers, ask Slurm for more (srun --gpus-per-node), start fewer "
            "tasks on each node, or leave both out to use what Slurm granted."
        )
    return TaskGpus(devices, "gpus_per_node and gpus_per_task")


def _share(number: int, position: int, tasks: int) -> slice:
    """Returns which of a number of devices are the task's, if all are divided.

    Three tasks get 3, 2 and 2 of 7 devices. If there are more tasks than devices, each gets one.
    """
    last = -(-(position + 1) * number // tasks)  # rounded up
    return slice(min(-(-position * number // tasks), last - 1), last)


def _find_conflict(
    step: SlurmStep,
    visible: VisibleDevices,
    gpus: TaskGpus,
    position: int,
    tasks: int,
) -> str:
    """Returns how the variables contradict what Slurm shows this task; "" if they do not.

    SLURM_STEP_GPUS has what Slurm shows (live, 22.05 to 26.05). Where the site confines tasks to
    their GPUs, it numbers them differently from the variables, whose numbers then begin at 0.
    """
    shown = visible.devices or ()
    granted = step.gpus_on_node
    if granted and not shown and not gpus.devices:
        return (
            f"SLURM_GPUS_ON_NODE={granted} and SLURM_STEP_GPUS={step.step_gpus or ''}, but "
            f"{visible.text}: this task does not know which GPUs are its own. Keep what srun sets, "
            "and start with srun --gpus-per-node, without --gpu-bind=none"
        )
    if not step.step_gpus or not visible.shown or not "".join(shown).isdigit():
        return ""  # UUIDs cannot be compared with numbers
    slurms = tuple(step.step_gpus.split(","))
    part = _share(len(slurms), position, tasks)  # which a script may have chosen
    if any(shown in (names, names[part]) for names in (slurms, numbered(slurms))):
        return ""
    return (
        f"{visible.text}, but Slurm shows this task SLURM_STEP_GPUS={step.step_gpus}: something "
        f"sets {visible.name} after srun, and tasks may share a GPU while others are idle. Remove "
        "that line of the program or script: each task then takes its own GPUs"
    )


def apply_gpus(gpus: TaskGpus, step: SlurmStep, environ: MutableMapping[str, str]) -> None:
    """Writes the settings into `environ`, and a mark that this task has applied them.

    TensorFlow's first process on a GPU takes all of its memory, and the second one fails. So tasks
    that share a GPU take only what they need (``GPUBFCAllocator::GetAllowGrowthValue``).
    """
    if gpus.shared:
        name = SlurmStep.allow_growth.name
        environ[name] = "true"
        warn_once(
            f"{name}=true is set, as this task shares its GPU: otherwise TensorFlow would take all "
            "of the memory at once, and the next task would find none; set the variable yourself "
            "to choose"
        )
    if gpus.settings:
        environ.update(gpus.settings)
        environ[SlurmStep.gpus_applied.name] = _mark_of(step, gpus.devices or ())


def _mark_of(step: SlurmStep, devices: Devices) -> str:
    """Returns the mark: the devices, and the task, as steps started from this one inherit it."""
    return f"{step.name}.{step.rank}:{','.join(devices)}"
