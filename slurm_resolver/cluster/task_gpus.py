"""The GPUs of one task, and the variables that show its process these and no others."""

from __future__ import annotations

from typing import Dict, Mapping, MutableMapping, NamedTuple, Optional

from slurm_resolver.log import warn_once
from slurm_resolver.slurm.gpu_variables import Devices, VisibleDevices
from slurm_resolver.slurm.step import SlurmStep

_GROWS_BY_ITSELF = "cuda_malloc_async"  # a value of TF_GPU_ALLOCATOR
_SLICE = "MIG-"  # how the UUID of a slice of a GPU begins


class TaskGpus(NamedTuple):
    """The GPUs of one task.

    Attributes:
        devices: named as in the variable that shows them; () for none; None where it is unknown
            whether there are any.
        source: why these, as `slurm-resolver show` prints it.
        settings: the variables to set so that the process sees only these; {} to change nothing.
        visible_before: the devices that the process sees without the settings; None if unknown.
        counts_given: whether the caller gave gpus_per_node or gpus_per_task.
        same_for_all: whether all tasks of the node see the same devices; then each of them can
            compute the GPUs of the others.
        memory: the variables to set because another task uses one of the devices as well; {} where
            none does, as far as this task knows, and where the user has set them.
    """

    devices: Optional[Devices]
    source: str
    settings: Mapping[str, str] = {}
    visible_before: Optional[Devices] = None
    counts_given: bool = False
    same_for_all: bool = False
    memory: Mapping[str, str] = {}

    def visible_devices(self, applied: bool) -> Optional[Devices]:
        """Returns the devices that this process sees; None if unknown.

        Without the settings (`applied` is False) it sees what it saw before, unless the caller gave
        the counts: then the caller makes sure that the process sees that many.
        """
        return self.devices if applied or self.counts_given else self.visible_before


def apply_gpus(gpus: TaskGpus, step: SlurmStep, environ: MutableMapping[str, str]) -> None:
    """Writes the settings into `environ`, and a mark that they are applied, once a task."""
    if gpus.memory:
        environ.update(gpus.memory)
        settings = " ".join(f"{name}={value}" for name, value in gpus.memory.items())
        warn_once(
            f"{settings} is set, as this task shares its GPU: TensorFlow would take all of the "
            "memory at once, and the next task would find none; set it yourself to choose"
        )
    if gpus.settings:
        environ.update(gpus.settings)
        mark = mark_of(step, gpus.devices or ())
        if mark is not None:
            environ[SlurmStep.gpus_applied.name] = mark


def mark_of(step: SlurmStep, devices: Devices) -> Optional[str]:
    """Returns the task and its devices as a text, which says that these settings are applied.

    The task is named, as a step that is started from this one must not inherit its devices.
    """
    if step.rank is None:
        return None
    return f"{step.job_id}.{step.step_id}.{step.rank}:{','.join(devices)}"


def memory_settings(step: SlurmStep) -> Dict[str, str]:
    """Returns the variables to set where a task shares its GPU with another.

    TensorFlow's first process on a GPU takes all of its memory, and the second one fails: so each
    takes only what it needs (``GPUBFCAllocator::GetAllowGrowthValue``). What the user has set
    stays.
    """
    chosen = step.allow_growth is not None or step.gpu_allocator == _GROWS_BY_ITSELF
    return {} if chosen else {SlurmStep.allow_growth.name: "true"}


def keep_usable(gpus: TaskGpus, visible: VisibleDevices) -> TaskGpus:
    """Leaves out the MIG slices that the process cannot use.

    CUDA shows a process a single slice, and no whole GPU beside it ("CUDA Device Enumeration" in
    NVIDIA's Multi-Instance GPU User Guide). So a task takes its whole GPUs, or its first slice.
    """
    before, devices = gpus.visible_before, gpus.devices or ()
    slices = [device for device in before or () if device.startswith(_SLICE)]
    gpus = gpus._replace(visible_before=tuple(slices[:1]) or before)
    whole = tuple(device for device in devices if not device.startswith(_SLICE))
    usable = devices if len(whole) == len(devices) else whole or devices[:1]
    if usable == devices:
        return gpus
    warn_once(
        "tasks of this node have several MIG slices each, and CUDA shows a process only one: start "
        "as many tasks on each node as it has slices"
    )
    return gpus._replace(
        devices=usable,
        source=f"{gpus.source}, and CUDA shows a process only one MIG slice",
        settings=visible.settings_for(usable),
    )
