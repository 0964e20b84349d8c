"""The GPUs of one task, and the variables that tell its process of them."""

from __future__ import annotations

from typing import Mapping, MutableMapping, NamedTuple, Optional

from slurm_resolver.log import warn_once
from slurm_resolver.slurm.gpu_variables import Devices
from slurm_resolver.slurm.step import SlurmStep

_APPLIED_VARIABLE = SlurmStep.gpus_applied.name


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
        slices: how many MIG slices the task has, where it can use only one of them; else 0.
    """

    devices: Optional[Devices]
    source: str
    settings: Mapping[str, str] = {}
    visible_before: Optional[Devices] = None
    counts_given: bool = False
    same_for_all: bool = False
    memory: Mapping[str, str] = {}
    slices: int = 0

    def visible_devices(self, applied: bool) -> Optional[Devices]:
        """Returns the devices that this process sees; None if unknown.

        Without the settings (`applied` is False) it sees what it saw before, unless the caller gave
        the counts: then the caller makes sure that the process sees that many.
        """
        return self.devices if applied or self.counts_given else self.visible_before


def apply_gpus(gpus: TaskGpus, step: SlurmStep, environ: MutableMapping[str, str]) -> None:
    """Writes the settings into `environ`, and that they are applied: they must not be twice.

    So it does with those of the memory of a GPU that tasks share, and logs them.
    """
    if gpus.memory:
        environ.update(gpus.memory)
        settings = " ".join(f"{name}={value}" for name, value in gpus.memory.items())
        warn_once(
            f"{settings} is set, as this task shares its GPU: TensorFlow would take all of the "
            "memory at once, and the next task would find none; set it yourself to choose"
        )
    if not gpus.settings:
        return
    environ.update(gpus.settings)
    applied = applied_value(step, gpus.devices or ())
    if applied is not None:
        environ[_APPLIED_VARIABLE] = applied


def applied_value(step: SlurmStep, devices: Devices) -> Optional[str]:
    """Returns the task and its devices as a text.

    The task is named, as a step that is started from this one must not inherit its devices.
    """
    if step.rank is None:
        return None
    return f"{step.job_id}.{step.step_id}.{step.rank}:{','.join(devices)}"
