"""The GPU variables that srun would set in each task of a step on this machine.

As Slurm does where it finds the GPUs in gres.conf, CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES,
ZE_AFFINITY_MASK and GPU_DEVICE_ORDINAL get the same value. Here no cgroup hides the other devices.
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.errors import GpuError, LaunchError
from slurm_resolver.slurm.gpu_variables import (
    CUDA,
    GPU_VARIABLES,
    SET_BY_SLURM,
    Devices,
    count_driver_gpus,
    read_visible_devices,
)
from slurm_resolver.slurm.step import SlurmStep

_GPU_BIND = re.compile(r"(?:verbose,)?(?:(none|closest)|(single|per_task):([1-9]\d{0,3}))")
_ONLY_ON_SLURM = re.compile(r"(?:verbose,)?((?:map|mask)(?:_gpu)?):.*", re.DOTALL)


class GpuRequest(NamedTuple):
    """What --gpus, --gpus-per-node, --gpus-per-task (or --tres-per-task), and --gpu-bind say."""

    gpus: Optional[int] = None
    per_node: Optional[int] = None
    per_task: Optional[int] = None
    bind: Optional[str] = None

    def gpus_of_step(self, num_tasks: int) -> Optional[int]:
        """Returns how many GPUs the step gets; None where none were asked for.

        Raises:
            GpuError: for options that contradict each other on a single node.
        """
        asked = {
            "--gpus": self.gpus,
            "--gpus-per-node": self.per_node,
            "--gpus-per-task": None if self.per_task is None else self.per_task * num_tasks,
        }
        counts = {name: number for name, number in asked.items() if number is not None}
        if len(set(counts.values())) > 1:
            given = ", ".join(f"{name} makes {number}" for name, number in counts.items())
            raise GpuError(
                f"{given} GPUs for {num_tasks} tasks on one node; expected the same number. Give "
                "only one of these options."
            )
        return next(iter(counts.values()), None)


class TaskGpus(NamedTuple):
    """The GPU variables of the tasks.

    Attributes:
        variables: those of each task, by rank.
        removed: variables of the launcher that the tasks must not get.
        warnings: what the user has to know.
    """

    variables: Sequence[Mapping[str, str]]
    removed: Sequence[str]
    warnings: Sequence[str]


def srun_gpu_variables(request: GpuRequest, num_tasks: int, environ: Mapping[str, str]) -> TaskGpus:
    """Returns what srun would set; the step gets the first of the GPUs that `environ` shows.

    Raises:
        GpuError: where more GPUs are asked for than CUDA_VISIBLE_DEVICES names or, without it,
            than the driver shows.
        LaunchError: for a --gpu-bind that cannot be read or simulated.
    """
    count = request.gpus_of_step(num_tasks)
    bind = request.bind
    if bind is None and request.per_task:
        bind = f"per_task:{request.per_task}"
    binding = None if bind is None else _GpuBinding.read(bind)
    common = {}
    if bind is not None:
        common = dict.fromkeys(("SLURM_TRES_BIND", "SLURMD_TRES_BIND"), f"gres/gpu:{bind}")
    if count is None:
        return TaskGpus([common] * num_tasks, (), ())
    if count == 0:
        # On Slurm a cgroup hides them, and no variable is set.
        return TaskGpus([{**common, CUDA: ""}] * num_tasks, GPU_VARIABLES, ())
    warnings: List[str] = []
    names, devices = _step_devices(count, environ, warnings)
    common["SLURM_GPUS_ON_NODE"] = str(count)
    tasks: List[Dict[str, str]] = []
    for rank in range(num_tasks):
        own = devices if binding is None else binding.task_devices(rank, devices, warnings)
        shown = dict.fromkeys((*names, "SLURM_STEP_GPUS"), ",".join(own))
        tasks.append({**common, **shown})
    return TaskGpus(tasks, GPU_VARIABLES, warnings)


def _step_devices(
    count: int, environ: Mapping[str, str], warnings: List[str]
) -> Tuple[Sequence[str], Devices]:
    """Returns the variables to set, and the step's GPUs."""
    shown = {name: value for name, value in environ.items() if name in GPU_VARIABLES}
    visible = read_visible_devices(SlurmStep.read(shown))
    if visible.devices is not None:
        if count > len(visible.devices):
            raise GpuError(
                f"{count} GPUs are asked for, but {visible.text} names {len(visible.devices)}. Ask "
                "for fewer, or unset the variable."
            )
        devices = visible.devices[:count]
        # The other makers' drivers do not know this one's UUIDs.
        numbers_only = all(name.isdigit() for name in devices)
        return (SET_BY_SLURM if numbers_only else [visible.name]), devices
    found = count_driver_gpus()
    if found is None:
        warnings.append(
            f"cannot see whether this machine has {count} GPU{'s' if count > 1 else ''} "
            "(nvidia-ml-py or a driver is missing): the variables are set all the same"
        )
    elif found < count:
        raise GpuError(
            f"{count} GPUs are asked for, but the driver shows {found}. Ask for fewer, or name "
            f"devices in {CUDA} to simulate more."
        )
    return SET_BY_SLURM, tuple(map(str, range(count)))


class _GpuBinding(NamedTuple):
    """A --gpu-bind: its kind, and the number behind it (0 for none)."""

    option: str
    kind: str
    number: int

    @classmethod
    def read(cls, option: str) -> _GpuBinding:
        match = _GPU_BIND.fullmatch(option)
        if match is None:
            listed = _ONLY_ON_SLURM.fullmatch(option)
            if listed is not None:
                raise LaunchError(
                    f"--gpu-bind {option!r}: {listed[1]} cannot be simulated here. List the GPUs "
                    f"in that order in {CUDA}, and use single:1 or per_task:N; on Slurm give this "
                    "to srun."
                )
            raise LaunchError(
                f"--gpu-bind {option!r}: expected none, closest, single:N or per_task:N"
            )
        return cls(option, match[1] or match[2], int(match[3] or 0))

    def task_devices(self, rank: int, devices: Devices, warnings: List[str]) -> Devices:
        """Returns the GPUs of a task."""
        if self.kind in ("none", "closest"):
            return devices
        if self.kind == "single":
            slot = rank // self.number
            # those for whom no GPU has room left take them in turn, one task each
            return (devices[slot if slot < len(devices) else rank % len(devices)],)
        own = devices[rank * self.number : (rank + 1) * self.number]
        if len(own) < self.number:
            left = f"only {len(own)}" if own else "none"
            first = "" if own else "; it takes the first one, as on Slurm"
            warnings.append(
                f"--gpu-bind {self.option} leaves task {rank} {left} of the step's {len(devices)} "
                f"GPUs{first}"
            )
        return own or devices[:1]
