"""Which GPUs this task takes, and why those.

Slurm tells a task its devices in CUDA_VISIBLE_DEVICES. Where it has bound them to the task, they
are the task's own; where all tasks of the node see the same ones, the tasks must share them out.
Device names pass through as they are: indices, ``GPU-…`` and ``MIG-…`` UUIDs.
"""

from __future__ import annotations

from typing import MutableMapping, NamedTuple, Optional, Tuple

from slurm_resolver.environment import VARIABLES, SlurmStep
from slurm_resolver.errors import GpuError

_VISIBLE = VARIABLES["visible_devices"].name
# Left by the first resolver for the next one in this process or a child: whose devices these are.
_APPLIED = VARIABLES["gpus_applied"].name


class Gpus(NamedTuple):
    """The GPUs of one task.

    Attributes:
        devices: as CUDA_VISIBLE_DEVICES names them; () for none; None where nothing says.
        source: why these, as `slurm-resolver show` prints it.
        before: what CUDA_VISIBLE_DEVICES showed before the decision; None where it was not set.
        explicit: whether the caller gave the counts.
    """

    devices: Optional[Tuple[str, ...]]
    source: str
    before: Optional[Tuple[str, ...]] = None
    explicit: bool = False

    def seen(self, applied: bool) -> Optional[Tuple[str, ...]]:
        """Returns the devices that this process sees; None where nothing tells.

        Where the decision is not `applied` it sees what it saw before, unless the caller gave the
        counts: then the caller sees to it that they come true.
        """
        return self.devices if applied or self.explicit else self.before


def choose_gpus(
    step: SlurmStep,
    local_id: int,
    tasks_on_node: int,
    max_tasks_per_node: int,
    gpus_per_node: Optional[int] = None,
    gpus_per_task: Optional[int] = None,
) -> Gpus:
    """Returns the GPUs of the task with this local id on its node.

    Args:
        step: the task's variables.
        local_id: SLURM_LOCALID.
        tasks_on_node: the tasks of the step on this node.
        max_tasks_per_node: the most tasks that any node of the step has.
        gpus_per_node: as TensorFlow's resolver: GPUs on each node.
        gpus_per_task: as TensorFlow's resolver: GPUs for each task; task i of a node takes the
            i-th slice.

    Raises:
        GpuError: where `gpus_per_task` times the tasks of a node exceeds the GPUs of the node.
    """
    visible = _devices(step.visible_devices)
    mark = _mark(step, visible)
    if mark is not None and step.gpus_applied == mark:
        return Gpus(visible, f"{_VISIBLE} set by an earlier resolver of this task", visible)
    if gpus_per_node is not None or gpus_per_task is not None:
        return _explicit(step, visible, local_id, max_tasks_per_node, gpus_per_node, gpus_per_task)
    if visible is None:
        return Gpus(None, f"{_VISIBLE} is not set")
    if not visible:
        return Gpus((), f"{_VISIBLE}={step.visible_devices}", visible)
    if tasks_on_node == 1:
        return Gpus(visible, f"{_VISIBLE}, the only task on the node", visible)
    on_node = step.gpus_on_node
    if on_node is not None and len(visible) < on_node:
        return Gpus(visible, f"{_VISIBLE}, bound to the task by Slurm", visible)
    own = _split(visible, local_id, tasks_on_node)
    return Gpus(own, f"{_VISIBLE} split by SLURM_LOCALID", visible)


def apply_gpus(gpus: Gpus, step: SlurmStep, environ: MutableMapping[str, str]) -> None:
    """Writes the decision into `environ`, and leaves a mark so that it is taken only once."""
    if gpus.devices is None or gpus.devices == gpus.before:
        return
    environ[_VISIBLE] = ",".join(gpus.devices)
    mark = _mark(step, gpus.devices)
    if mark is not None:
        environ[_APPLIED] = mark


def _mark(step: SlurmStep, devices: Optional[Tuple[str, ...]]) -> Optional[str]:
    if devices is None or step.procid is None:
        return None
    return f"{step.job_id}.{step.step_id}.{step.procid}:{','.join(devices)}"


def _devices(text: Optional[str]) -> Optional[Tuple[str, ...]]:
    """The devices of CUDA_VISIBLE_DEVICES; as in CUDA, -1 hides itself and all after it."""
    if text is None:
        return None
    devices = []
    for device in text.split(","):
        device = device.strip()
        if device in ("", "-1", "NoDevFiles"):
            break
        devices.append(device)
    return tuple(devices)


def _split(devices: Tuple[str, ...], local_id: int, tasks: int) -> Tuple[str, ...]:
    """As evenly as can be, every device used: 7 devices make 3, 2 and 2 for three tasks.

    More tasks than devices share them, again evenly.
    """
    number = len(devices)
    if tasks >= number:
        return (devices[local_id * number // tasks],)
    each, over = divmod(number, tasks)
    first = local_id * each + min(local_id, over)
    return devices[first : first + each + (local_id < over)]


def _explicit(
    step: SlurmStep,
    visible: Optional[Tuple[str, ...]],
    local_id: int,
    max_tasks_per_node: int,
    gpus_per_node: Optional[int],
    gpus_per_task: Optional[int],
) -> Gpus:
    for name, value in (("gpus_per_node", gpus_per_node), ("gpus_per_task", gpus_per_task)):
        if value is not None and (not isinstance(value, int) or value < 0):
            raise GpuError(f"{name}={value!r}: expected a whole number of GPUs, 0 or more.")
    if gpus_per_node is None:
        gpus_per_node = max(len(visible or ()), step.gpus_on_node or 0)
    if gpus_per_task is None:
        gpus_per_task = gpus_per_node // max_tasks_per_node
    if gpus_per_task * max_tasks_per_node > gpus_per_node:
        raise GpuError(
            f"gpus_per_task={gpus_per_task} and up to {max_tasks_per_node} tasks on a node need "
            f"{gpus_per_task * max_tasks_per_node} GPUs, but the node has {gpus_per_node}. "
            "Ask Slurm for more (srun --gpus-per-node) or start fewer tasks a node."
        )
    source = "gpus_per_node and gpus_per_task"
    if visible and len(visible) < gpus_per_node:
        if len(visible) == gpus_per_task:
            return Gpus(visible, f"{_VISIBLE}, bound to the task by Slurm", visible, True)
        raise GpuError(
            f"gpus_per_node={gpus_per_node} and gpus_per_task={gpus_per_task}, but {_VISIBLE}="
            f"{','.join(visible)} has {len(visible)}. Leave both out to use what Slurm granted."
        )
    # Indices count what is visible where something is: the second GPU of a grant of 4,5 is 5.
    names = visible or tuple(map(str, range(gpus_per_node)))
    own = names[local_id * gpus_per_task : (local_id + 1) * gpus_per_task]
    return Gpus(own, source, visible, True)
