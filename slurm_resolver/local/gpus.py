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

_BIND = re.compile(
    r"(?:verbose,)?(?:(none|closest)|(single|per_task):([1-9]\d{0,3})|(map_gpu|mask_gpu):(\S+))"
)
_ITEM = {
    "map_gpu": re.compile(r"(\d{1,4})(?:\*(\d{1,4}))?"),
    # Without 0x a mask is hexadecimal by Slurm's manual, and decimal in its code.
    "mask_gpu": re.compile(r"(0x[0-9a-f]{1,64}|\d)(?:\*(\d{1,4}))?", re.IGNORECASE),
}


class GpuRequest(NamedTuple):
    """What the options --gpus, --gpus-per-node, --gpus-per-task and --gpu-bind say."""

    gpus: Optional[int] = None
    per_node: Optional[int] = None
    per_task: Optional[int] = None
    bind: Optional[str] = None

    def total(self, num_tasks: int) -> Optional[int]:
        """Returns the GPUs of the step; None where none were asked for.

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
            said = ", ".join(f"{name} makes {number}" for name, number in counts.items())
            raise GpuError(
                f"{said} GPUs for {num_tasks} tasks on one node; expected the same number. Leave "
                "all but one out."
            )
        return next(iter(counts.values()), None)


class LocalGpus(NamedTuple):
    """The variables of each task, those that must not pass through, and what is to be said."""

    variables: Sequence[Mapping[str, str]]
    hidden: Sequence[str]
    warnings: Sequence[str]


def gpu_variables(request: GpuRequest, num_tasks: int, environ: Mapping[str, str]) -> LocalGpus:
    """Returns what srun would set; the GPUs are the first of those that `environ` shows.

    Raises:
        GpuError: where more GPUs are asked for than CUDA_VISIBLE_DEVICES names or, without it,
            than the driver shows.
        LaunchError: for a --gpu-bind that cannot be read.
    """
    count = request.total(num_tasks)
    bind = request.bind
    if bind is None and request.per_task is not None:
        bind = f"per_task:{request.per_task}" if request.per_task else None
    warnings: List[str] = []
    shares = None if bind is None else _Binding.read(bind)
    common = {} if bind is None else {"SLURMD_TRES_BIND": f"gpu:{bind}"}
    if count is None:
        return LocalGpus([common] * num_tasks, (), ())
    if count == 0:
        # On Slurm a cgroup hides them, and no variable is set.
        return LocalGpus([{**common, CUDA: ""}] * num_tasks, GPU_VARIABLES, ())
    names, devices = _devices(count, environ, warnings)
    common["SLURM_GPUS_ON_NODE"] = str(count)
    tasks: List[Dict[str, str]] = []
    for rank in range(num_tasks):
        own = devices if shares is None else shares.of(rank, devices, warnings)
        text = None if own is None else ",".join(own)
        shown = {} if text is None else dict.fromkeys((*names, "SLURM_STEP_GPUS"), text)
        tasks.append({**common, **shown})
    return LocalGpus(tasks, GPU_VARIABLES, warnings)


def _devices(
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
        # A UUID means nothing to the other makers' drivers.
        plain = all(name.isdigit() for name in devices)
        return (SET_BY_SLURM if plain else [visible.name]), devices
    found = count_driver_gpus()
    if found is None:
        warnings.append(
            f"cannot see whether this machine has {count} GPU{'s' if count > 1 else ''} "
            "(nvidia-ml-py or a driver is missing): the variables are set all the same"
        )
    elif found < count:
        raise GpuError(
            f"{count} GPUs are asked for, but the driver shows {found}. Ask for fewer, or name "
            f"devices in {CUDA} to imitate more."
        )
    return SET_BY_SLURM, tuple(map(str, range(count)))


class _Binding(NamedTuple):
    """A --gpu-bind: its kind, and its number or, for maps and masks, an entry a task."""

    text: str
    kind: str
    number: int
    entries: Sequence[int]

    @classmethod
    def read(cls, text: str) -> _Binding:
        match = _BIND.fullmatch(text)
        if match is None:
            raise LaunchError(
                f"--gpu-bind {text!r}: expected none, closest, single:N, per_task:N, map_gpu:LIST "
                "or mask_gpu:LIST"
            )
        plain, counted, number, listed, items = match.groups()
        entries: List[int] = []
        for item in items.split(",") if items else ():
            one = _ITEM[listed].fullmatch(item)
            if one is None:
                form = "a GPU's number" if listed == "map_gpu" else "a mask such as 0x3"
                raise LaunchError(f"--gpu-bind {text!r}: {item!r}: expected {form}")
            entries += [int(one[1], 16 if listed == "mask_gpu" else 10)] * int(one[2] or 1)
        return cls(text, plain or counted or listed, int(number or 0), entries)

    def of(self, rank: int, devices: Devices, warnings: List[str]) -> Optional[Devices]:
        """Returns the GPUs of a task; None where the variables are not set."""
        if self.kind == "none":
            return None
        if self.kind == "closest":
            return devices
        if self.kind == "single":
            return (devices[rank // self.number % len(devices)],)
        if self.kind == "per_task":
            chosen = list(range(rank * self.number, (rank + 1) * self.number))
        else:
            entry = self.entries[rank % len(self.entries)]
            mask = entry if self.kind == "mask_gpu" else 1 << entry
            chosen = [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
        own = tuple(devices[index] for index in chosen if index < len(devices))
        if not own or (self.kind == "per_task" and len(own) < len(chosen)):
            left = f"only {len(own)}" if own else "none"
            first = "" if own else "; it takes the first one, as on Slurm"
            warnings.append(
                f"--gpu-bind {self.text} leaves task {rank} {left} of the step's {len(devices)} "
                f"GPUs{first}"
            )
        return own or devices[:1]
