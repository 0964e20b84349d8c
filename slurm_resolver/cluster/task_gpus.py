"""Which GPUs a task uses, and the variables that show its process these and no others.

A task uses the devices that Slurm has bound to it. If all tasks of the node see the same devices,
the tasks that use GPUs divide them by SLURM_LOCALID. The effect of each option of srun(1) was
measured on live clusters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from typing import NamedTuple

from slurm_resolver.cluster.jobs import JOB_NAMES
from slurm_resolver.cluster.layout import Layout
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.roles import Roles, ranks_of
from slurm_resolver.errors import GpuError, JobsError
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


class NodeGpus(NamedTuple):
    """Everything that determines the GPUs of a task.

    Attributes:
        step: the variables of this task.
        local_rank: the task's local rank on its node.
        users: the local ranks, ascending, of the tasks on this node that use GPUs.
        options: `gpus_per_node` and `gpus_per_task`, as in TensorFlow's resolver; the i-th task
            that uses GPUs gets the i-th slice of `gpus_per_task` devices.
    """

    step: SlurmStep
    local_rank: int
    users: Sequence[int]
    options: ClusterOptions

    def share_of(self, number: int) -> slice:
        """Returns which of the node's devices are the task's share, if all are divided.

        Three tasks get 3, 2 and 2 of 7 devices. If there are more tasks than devices, each gets
        one.
        """
        tasks = len(self.users)
        position = self.users.index(self.local_rank)
        if tasks > number:
            first = position * number // tasks
            return slice(first, first + 1)
        # rounded up
        return slice(-(-position * number // tasks), -(-(position + 1) * number // tasks))


def choose_gpus(step: SlurmStep, layout: Layout, roles: Roles, options: ClusterOptions) -> TaskGpus:
    """Returns the GPUs of this task.

    Raises:
        GpuError: for a value that is not a list of devices, more devices than Slurm granted, or
            counts that do not fit.
        JobsError: for a name in `gpu_jobs` that is not the name of a job.
    """
    rank = step.require(SlurmStep.rank)
    # in a large step these are few
    without = set(ranks_of(roles, roles.keys() - jobs_with_gpus(roles, options)))
    return gpus_on_node(
        NodeGpus(
            step=step,
            local_rank=layout.local_rank_of[rank],
            users=[
                local_rank
                for local_rank, other in enumerate(layout.ranks_on(layout.node_of[rank]))
                if other not in without
            ],
            options=options,
        )
    )


def jobs_with_gpus(roles: Collection[str], options: ClusterOptions) -> set[str]:
    """Returns which of the cluster's jobs use GPUs.

    By default a ParameterServerStrategy's parameter servers and coordinator (the chief) do not. If
    the caller gave numbers of GPUs, all jobs use GPUs as in TensorFlow's own resolver. The names in
    `options.jobs` are valid even if they have no tasks.

    Raises:
        JobsError: for a name in `gpu_jobs` that is not the name of a job.
    """
    gpu_jobs = options.gpu_jobs
    if gpu_jobs is None:
        if "ps" in roles and not options.gives_gpu_counts:
            return set(roles) - {"ps", "chief"}
        return set(roles)
    names = dict.fromkeys([*JOB_NAMES, *roles, *(options.jobs or ())])
    if isinstance(gpu_jobs, str) or set(gpu_jobs) - names.keys():
        raise JobsError(
            f"gpu_jobs={gpu_jobs!r}: expected a collection of these names: {', '.join(names)}."
        )
    return set(gpu_jobs)


def gpus_on_node(node: NodeGpus) -> TaskGpus:
    """Returns the GPUs of one task on its node, as `choose_gpus`."""
    step = node.step
    visible = read_visible_devices(step)
    is_user = node.local_rank in node.users
    if visible.devices is None and is_user and not node.options.gives_gpu_counts:
        visible = visible._replace(devices=_ask_driver(step))
    if step.gpus_applied == _mark_of(step, visible.devices or ()):
        gpus = TaskGpus(visible.devices, f"{visible.name}, set by an earlier resolver of this task")
    elif not is_user:
        gpus = TaskGpus((), "this job uses no GPU (gpu_jobs)")
    else:
        gpus = _choose(node, visible)
        conflict = _find_conflict(node, visible, gpus)
        if conflict:
            warn_once(conflict)
            gpus = gpus._replace(
                conflict=conflict, source=f"{visible.name}, which Slurm did not set this way"
            )
    return _add_settings(gpus, visible, step)


def _add_settings(gpus: TaskGpus, visible: VisibleDevices, step: SlurmStep) -> TaskGpus:
    if gpus.devices is None:
        return gpus
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


def _usable(devices: Devices) -> Devices:
    """Returns the devices that a process can use: the whole GPUs, or the first MIG slice.

    CUDA shows a process either whole GPUs or one slice ("CUDA Device Enumeration" in NVIDIA's
    Multi-Instance GPU User Guide).
    """
    return tuple(device for device in devices if not device.startswith("MIG-")) or devices[:1]


def _choose(node: NodeGpus, visible: VisibleDevices) -> TaskGpus:
    """Returns the GPUs of a task that uses some."""
    step = node.step
    shown = visible.devices
    granted = step.gpus_on_node
    if shown and granted is not None and len(shown) > granted:
        raise GpuError(
            f"{visible.text} shows {len(shown)} GPUs, but SLURM_GPUS_ON_NODE={granted}: the "
            "others do not belong to this step. Unset the variable where it was exported, and let "
            "Slurm set it."
        )
    if visible.shown and shown and _has_batch_scripts_variables(step):
        return TaskGpus(
            (), f"{visible.name} is the batch script's, and this component was granted none"
        )
    if node.options.gives_gpu_counts:
        return _by_given_counts(node, visible)
    if not shown:
        return TaskGpus(shown, f"{visible.name} {'shows none' if visible.shown else 'is not set'}")
    if not visible.shown:
        return _divide(node, shown, "the driver's GPUs")
    if not _is_bound(step, shown):
        return _divide(node, shown, visible.name)
    # With these, no variable shows which tasks see the same GPUs.
    shared = len(node.users) > 1 and step.gpu_binding in ("closest", "single")
    return TaskGpus(shown, f"{visible.name}, bound to the task by Slurm", shared=shared)


def _has_batch_scripts_variables(step: SlurmStep) -> bool:
    """Whether the variables show the devices of the batch script, on another node.

    Slurm changes these variables only on nodes with GPUs, and a component of a heterogeneous job
    may run on nodes without.
    """
    has_none = step.gpus_on_node is None and not step.step_gpus
    return bool(has_none and step.het_size is not None and step.job_gpus)


def _is_bound(step: SlurmStep, shown: Devices) -> bool:
    """Whether Slurm shows these devices to this task only, not to all tasks of the node."""
    if step.gpu_binding in (None, "", "closest"):
        return len(shown) < (step.gpus_on_node or 0)
    return step.gpu_binding != "none"


def _divide(node: NodeGpus, shown: Devices, source: str) -> TaskGpus:
    """Returns the task's share of the devices that all tasks of the node see."""
    tasks = len(node.users)
    if tasks == 1:
        return TaskGpus(shown, f"{source}, the only task on the node that uses GPUs")
    number = len(shown)
    if number % tasks:
        warn_once(
            f"{tasks} tasks share the node's {counted(number, 'GPU')}; start one for each GPU: "
            "TensorFlow's strategies need the same number of GPUs in each worker, and tasks that "
            "share a GPU share its memory"
        )
    return TaskGpus(
        shown[node.share_of(number)], f"{source} split by SLURM_LOCALID", shared=tasks > number
    )


def _find_conflict(node: NodeGpus, visible: VisibleDevices, gpus: TaskGpus) -> str:
    """Returns how the variables contradict what Slurm shows this task; "" if they do not."""
    text = node.step.step_gpus or ""
    granted = node.step.gpus_on_node
    if granted and not (visible.devices or gpus.devices or node.options.gives_gpu_counts):
        return (
            f"SLURM_GPUS_ON_NODE={granted} and SLURM_STEP_GPUS={text}, but {gpus.source}: this "
            "task does not know which GPUs are its own. Keep what srun sets, and start with srun "
            "--gpus-per-node, without --gpu-bind=none"
        )
    if not text or not visible.shown or _fits_slurms_gpus(node, visible.devices or ()):
        return ""
    return (
        f"{visible.text}, but Slurm shows this task SLURM_STEP_GPUS={text}: something sets "
        f"{visible.name} after srun, and tasks may share a GPU while others are idle. Remove that "
        "line of the program or script: each task then takes its own GPUs"
    )


def _fits_slurms_gpus(node: NodeGpus, shown: Devices) -> bool:
    """Whether these devices may be those that Slurm shows this task.

    SLURM_STEP_GPUS has what Slurm shows (live, 22.05 to 26.05). Where the site confines tasks to
    their GPUs, it numbers them differently from the variables, whose numbers then begin at 0.
    """
    # UUIDs cannot be compared with numbers.
    if not "".join(shown).isdigit():
        return True
    slurms = tuple((node.step.step_gpus or "").split(","))
    part = node.share_of(len(slurms))  # which a script may have chosen
    return shown in (slurms, slurms[part], numbered(slurms), numbered(slurms)[part])


def _by_given_counts(node: NodeGpus, visible: VisibleDevices) -> TaskGpus:
    """Returns the task's GPUs if the caller gave the number on each node, of each task, or both."""
    shown = visible.devices or ()
    options = (node.options.gpus_per_node, node.options.gpus_per_task)
    per_node, per_task = map(whole_number, options)
    are_counts = (per_node, per_task) == options
    users = len(node.users)
    granted = node.step.gpus_on_node
    if per_node is None:
        per_node = max(len(shown), granted or 0)
    if per_task is None:
        per_task = per_node // users
    is_bound = 0 < len(shown) < per_node
    if (
        not are_counts
        or (granted is not None and per_node > granted)
        or per_task * users > per_node
        or (is_bound and len(shown) != per_task)
    ):
        raise GpuError(
            f"gpus_per_node={options[0]!r} and gpus_per_task={options[1]!r} "
            f"do not fit: SLURM_GPUS_ON_NODE={granted}, {visible.name} shows {len(shown)}, and "
            f"{users} tasks of this node use GPUs. Give whole numbers, ask Slurm for more (srun "
            "--gpus-per-node), start fewer tasks on each node, or leave both out to use what Slurm "
            "granted."
        )
    if is_bound:
        return TaskGpus(shown, f"{visible.name}, bound to the task by Slurm")
    # Counts index the visible devices where there are any: the second GPU of 4,5 is 5.
    names = shown or tuple(map(str, range(per_node)))
    first = node.users.index(node.local_rank) * per_task
    return TaskGpus(names[first : first + per_task], "gpus_per_node and gpus_per_task")


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
    return f"{step.job_id}.{step.step_id}.{step.rank}:{','.join(devices)}"
