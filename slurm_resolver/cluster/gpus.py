"""Which GPUs a task takes, and why those.

Where Slurm has bound devices to the task, they are its own; where all tasks of the node see the
same ones, those that use GPUs share them out by SLURM_LOCALID. Devices pass through under the
names that Slurm gave them.
"""

from __future__ import annotations

import re
from typing import Collection, Dict, Mapping, MutableMapping, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.errors import GpuError, JobsError
from slurm_resolver.log import warn_once
from slurm_resolver.slurm.gpu_variables import (
    Devices,
    VisibleDevices,
    count_driver_gpus,
    read_visible_devices,
)
from slurm_resolver.slurm.step import SlurmStep

_APPLIED = SlurmStep.gpus_applied.name

# What srun was told about binding. Others (none, closest) leave the devices to all tasks.
_BOUND = re.compile(r"gpu:(per_task|single|map|mask)")


class Gpus(NamedTuple):
    """The GPUs of one task.

    Attributes:
        devices: by the names of the variable that shows them; () for none; None where nothing
            says whether there are any.
        source: why these, as `slurm-resolver show` prints it.
        settings: the variables that make it so; empty where nothing has to change.
        seen_before: the devices that the process sees as long as the settings are not made; None
            where nothing says.
        explicit: whether the caller gave the counts.
        shared: whether all tasks of the node see the same, so that each knows the others' share.
    """

    devices: Optional[Devices]
    source: str
    settings: Mapping[str, str] = {}
    seen_before: Optional[Devices] = None
    explicit: bool = False
    shared: bool = False

    def seen(self, applied: bool) -> Optional[Devices]:
        """Returns the devices that this process sees; None where nothing tells.

        Where the decision is not `applied` it sees what it saw before, unless the caller gave the
        counts: then the caller sees to it that they come true.
        """
        return self.devices if applied or self.explicit else self.seen_before


class NodeGpus(NamedTuple):
    """The tasks of one node and how they share its GPUs, as the task `step` is of sees it.

    `ranks` stand in the order of their local ranks; `gpu_local_ranks` are the local ranks of those
    that use GPUs; `counts` are the last three arguments of `choose_gpus`.
    """

    step: SlurmStep
    own: Gpus
    ranks: Sequence[int]
    gpu_local_ranks: Sequence[int]
    counts: Tuple[int, Optional[int], Optional[int]]

    def decisions(self) -> Dict[int, Gpus]:
        """Returns each rank's decision, as far as this task can know the others'."""
        decisions = {}
        for local_rank, rank in enumerate(self.ranks):
            if rank == self.step.rank:
                decisions[rank] = self.own
            elif local_rank in self.gpu_local_ranks and not self.own.shared:
                decisions[rank] = Gpus(None, "known to the task alone")
            else:
                other = self.step.replace(rank=rank, gpus_applied=None)
                decisions[rank] = choose_gpus(other, local_rank, self.gpu_local_ranks, *self.counts)
        return decisions


def jobs_with_gpus(jobs: Collection[str], gpu_jobs: Optional[Collection[str]]) -> Collection[str]:
    """Returns which of the cluster's jobs use GPUs.

    By default all but parameter servers and, beside these, the chief: it then is the coordinator
    of a ParameterServerStrategy, and computes nothing.

    Raises:
        JobsError: for a name in `gpu_jobs` that is no job's.
    """
    if gpu_jobs is None:
        return {job for job in jobs if job != "ps" and not (job == "chief" and "ps" in jobs)}
    unknown = set(gpu_jobs) - {"chief", "worker", "ps", "evaluator"}
    if unknown or isinstance(gpu_jobs, str):
        raise JobsError(
            f"gpu_jobs={gpu_jobs!r}: expected a collection of the names chief, worker, ps and "
            "evaluator."
        )
    return set(gpu_jobs)


def choose_gpus(
    step: SlurmStep,
    local_rank: int,
    gpu_local_ranks: Sequence[int],
    max_tasks_per_node: int,
    gpus_per_node: Optional[int] = None,
    gpus_per_task: Optional[int] = None,
) -> Gpus:
    """Returns the GPUs of the task with this local rank on its node.

    Args:
        step: the task's variables.
        local_rank: SLURM_LOCALID.
        gpu_local_ranks: the local ranks, ascending, of the tasks on this node that use GPUs.
        max_tasks_per_node: the most tasks that any node of the step has.
        gpus_per_node: as TensorFlow's resolver: GPUs on each node.
        gpus_per_task: as TensorFlow's resolver: GPUs for each task; task i of a node takes the
            i-th slice.

    Raises:
        GpuError: for a value that is no list of devices, more devices than Slurm granted, or
            counts that do not fit.
    """
    visible = read_visible_devices(step)
    shown = visible.devices
    if step.gpus_applied is not None and step.gpus_applied == _mark(step, shown or ()):
        source = f"{visible.name}, set by an earlier resolver of this task"
        return Gpus(shown, source, seen_before=shown)
    _check_grant(step, visible)
    if shown and _is_batch_scripts(step):
        source = f"{visible.name} is the batch script's, and this component was granted none"
        return Gpus((), source, visible.settings_for(()), shown, shared=True)
    if local_rank not in gpu_local_ranks:
        return _none(step, visible)
    if gpus_per_node is not None or gpus_per_task is not None:
        return _explicit(
            step, visible, local_rank, max_tasks_per_node, gpus_per_node, gpus_per_task
        )
    if shown is None:
        return _uncovered(step, visible, local_rank, gpu_local_ranks)
    if not shown:
        return Gpus((), f"{visible.name} shows none", seen_before=(), shared=True)
    if _is_bound(step, shown):
        return Gpus(shown, f"{visible.name}, bound to the task by Slurm", seen_before=shown)
    if len(gpu_local_ranks) == 1:
        source = f"{visible.name}, the only task on the node that uses GPUs"
        return Gpus(shown, source, seen_before=shown)
    own = _split(shown, local_rank, gpu_local_ranks)
    source = f"{visible.name} split by SLURM_LOCALID"
    return Gpus(own, source, _settings(visible, own), shown, shared=True)


def apply_gpus(gpus: Gpus, step: SlurmStep, environ: MutableMapping[str, str]) -> None:
    """Writes the decision into `environ`, and leaves a mark so that it is taken only once."""
    if not gpus.settings:
        return
    environ.update(gpus.settings)
    mark = _mark(step, gpus.devices or ())
    if mark is not None:
        environ[_APPLIED] = mark


def _mark(step: SlurmStep, devices: Devices) -> Optional[str]:
    """Whose devices these are, so that a step started from this task does not inherit them."""
    if step.rank is None:
        return None
    return f"{step.job_id}.{step.step_id}.{step.rank}:{','.join(devices)}"


def _settings(visible: VisibleDevices, devices: Devices) -> Dict[str, str]:
    return {} if devices == visible.devices else visible.settings_for(devices)


def _check_grant(step: SlurmStep, visible: VisibleDevices) -> None:
    granted = step.gpus_on_node
    if granted is not None and visible.devices is not None and len(visible.devices) > granted:
        raise GpuError(
            f"{visible.text} shows {len(visible.devices)} GPUs, but SLURM_GPUS_ON_NODE={granted}: "
            "the others are not this step's. Unset the variable where it was exported, and let "
            "Slurm set it."
        )


def _is_batch_scripts(step: SlurmStep) -> bool:
    """Whether the devices are another node's: those of the node where the batch script runs.

    srun hands its variables on, and Slurm sets or unsets them only on nodes that have GPUs. A
    heterogeneous job may have components on others.
    """
    granted = step.step_gpus is not None or step.gpus_on_node is not None
    return step.het_size is not None and step.job_gpus is not None and not granted


def _is_bound(step: SlurmStep, shown: Devices) -> bool:
    """Whether Slurm gave these devices to this task, and not to all tasks of the node."""
    if step.tres_bind is not None and _BOUND.search(step.tres_bind):
        return True
    return step.gpus_on_node is not None and len(shown) < step.gpus_on_node


def _none(step: SlurmStep, visible: VisibleDevices) -> Gpus:
    source = "this job uses no GPU (gpu_jobs)"
    nothing_said = visible.devices is None and step.gpus_on_node is None
    devices = None if nothing_said else ()
    shared = not (visible.devices and _is_bound(step, visible.devices))
    return Gpus(devices, source, visible.settings_for(()), visible.devices, shared=shared)


def _uncovered(
    step: SlurmStep, visible: VisibleDevices, local_rank: int, gpu_local_ranks: Sequence[int]
) -> Gpus:
    """No variable shows devices: either Slurm manages no GPUs here, or srun bound none."""
    number = count_driver_gpus()
    granted = step.gpus_on_node
    if granted is not None and granted != number:
        # The grant is not all that the driver shows, so that no index is known to be in it.
        if granted:
            warn_once(
                f"SLURM_GPUS_ON_NODE={granted}, but {visible.name} is not set, and so this task "
                "cannot know which GPUs are its own; start with srun --gpus-per-node, without "
                "--gpu-bind=none"
            )
        return Gpus(None if granted else (), f"{visible.name} is not set")
    if not number:
        return Gpus(None if number is None else (), f"{visible.name} is not set")
    devices = tuple(map(str, range(number)))
    if len(gpu_local_ranks) == 1:
        return Gpus(devices, "all that the driver shows", seen_before=devices)
    own = _split(devices, local_rank, gpu_local_ranks)
    source = "what the driver shows, split by SLURM_LOCALID"
    return Gpus(own, source, _settings(visible, own), devices, shared=True)


def _split(devices: Devices, local_rank: int, gpu_local_ranks: Sequence[int]) -> Devices:
    """As evenly as can be, every device used: 7 devices make 3, 2 and 2 for three tasks.

    More tasks than devices share them, again evenly.
    """
    turn, tasks, number = gpu_local_ranks.index(local_rank), len(gpu_local_ranks), len(devices)
    if tasks > number:
        warn_once(
            f"{tasks} tasks share the node's {number} GPU{'s' if number > 1 else ''}; limit each "
            "one's memory, or start fewer tasks a node"
        )
        return (devices[turn * number // tasks],)
    each, over = divmod(number, tasks)
    first = turn * each + min(turn, over)
    return devices[first : first + each + (turn < over)]


def _explicit(
    step: SlurmStep,
    visible: VisibleDevices,
    local_rank: int,
    max_tasks_per_node: int,
    gpus_per_node: Optional[int],
    gpus_per_task: Optional[int],
) -> Gpus:
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
            "Ask Slurm for more (srun --gpus-per-node) or start fewer tasks a node."
        )
    if shown and len(shown) < gpus_per_node:
        if len(shown) == gpus_per_task:
            source = f"{visible.name}, bound to the task by Slurm"
            return Gpus(shown, source, seen_before=shown, explicit=True)
        raise GpuError(
            f"gpus_per_node={gpus_per_node} and gpus_per_task={gpus_per_task}, but {visible.text} "
            f"has {len(shown)}. Leave both out to use what Slurm granted."
        )
    # Indices count what is visible where something is: the second GPU of a grant of 4,5 is 5.
    names: Tuple[str, ...] = shown or tuple(map(str, range(gpus_per_node)))
    own = names[local_rank * gpus_per_task : (local_rank + 1) * gpus_per_task]
    source = "gpus_per_node and gpus_per_task"
    settings = _settings(visible, own)
    return Gpus(own, source, settings, visible.devices, explicit=True, shared=True)
