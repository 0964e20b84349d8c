"""Reads the variables that show a process its GPUs, and computes values that show fewer.

CUDA_VISIBLE_DEVICES is NVIDIA's; ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and GPU_DEVICE_ORDINAL
are AMD's. Slurm sets all that the site's gres.conf names alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from slurm_resolver.errors import GpuError
from slurm_resolver.slurm.step_variables import VARIABLES, SlurmStep
from slurm_resolver.slurm.variable_types import Exports

Devices = tuple[str, ...]

CUDA = "CUDA_VISIBLE_DEVICES"
_ROCR = "ROCR_VISIBLE_DEVICES"
_ORDINAL = "GPU_DEVICE_ORDINAL"
# The variables that Slurm sets, all to the same value.
SET_BY_SLURM = (CUDA, _ROCR, _ORDINAL)
# The first of these that is set shows the process its devices.
GPU_VARIABLES = (CUDA, _ROCR, "HIP_VISIBLE_DEVICES", _ORDINAL)
_AMD_DRIVER = Path("/dev/kfd")


class VisibleDevices(NamedTuple):
    """The devices that the variables show to this process.

    Attributes:
        name: the variable that shows them.
        devices: as the variable names them; None if no variable is set.
        shown: the devices of every variable that is set, by its name.
    """

    name: str = CUDA
    devices: Devices | None = None
    shown: Mapping[str, Devices] = {}

    @property
    def text(self) -> str:
        """The variable with its value, for messages."""
        if not self.shown:
            return f"{self.name} is not set"
        return f"{self.name}={','.join(self.devices or ())}"

    def settings_for(self, devices: Devices) -> Exports:
        """Returns the variables to set so that the process sees only these of `self.devices`.

        The result is {} if all variables show these already, as the maker's driver reads them.
        """
        # AMD's ROCm numbers the devices of all other variables among those that
        # ROCR_VISIBLE_DEVICES leaves ("GPU Isolation Techniques" in ROCm's documentation).
        wanted = dict.fromkeys(self.shown, numbered(devices) if self.name == _ROCR else devices)
        wanted[self.name] = devices
        if wanted == self.shown:
            return {}
        return {name: ",".join(shown) for name, shown in wanted.items()}


def numbered(devices: Devices) -> Devices:
    """Returns the numbers of as many devices, from 0 on."""
    return tuple(map(str, range(len(devices))))


def read_visible_devices(step: SlurmStep) -> VisibleDevices:
    """Returns the devices that the variables show to this task.

    Raises:
        GpuError: for a value that is not a list of devices, or that names one twice; and for AMD's
            GPUs, if a variable shows others than those of ROCR_VISIBLE_DEVICES.
    """
    shown = {}
    for name in GPU_VARIABLES:
        text = getattr(step, VARIABLES[name].field)
        if text is not None:
            shown[name] = _parse(name, text)
    if shown.keys() == {_ROCR, _ORDINAL} and not _AMD_DRIVER.exists():
        # Slurm sets these two only beside CUDA's: something has unset that one.
        return VisibleDevices()
    if _ROCR not in shown or (CUDA in shown and not _AMD_DRIVER.exists()):
        first = next(iter(shown), CUDA)
        return VisibleDevices(first, shown.get(first), shown)
    devices = shown[_ROCR]
    for name, others in shown.items():
        if others not in (devices, numbered(devices), ()):
            raise GpuError(
                f"{_ROCR}={','.join(devices)}, but {name}={','.join(others)}; expected the same "
                f"devices in both, as Slurm sets them, or their numbers for ROCm. Unset {name}."
            )
    return VisibleDevices(_ROCR, () if () in shown.values() else devices, shown)


def _parse(name: str, text: str) -> Devices:
    """Reads a list of devices, which ends at the first entry that hides devices (-1)."""
    devices: list[str] = []
    for device in map(str.strip, text.split(",") if text.strip() else ()):
        # An index, or a UUID, which may be shortened.
        if not re.fullmatch("[0-9]{1,5}|(GPU|MIG)-[0-9A-Za-z/-]+", device) or device in devices:
            if re.fullmatch("-[0-9]+|NoDevFiles", device):
                break
            raise GpuError(
                f"{name}={text!r}: {device!r} is not a device, or named twice; expected devices "
                "such as 0,1 or GPU-… or MIG-…, separated by commas. Unset the variable, and let "
                "Slurm set it."
            )
        devices.append(device)
    return tuple(devices)


def count_driver_gpus() -> int | None:
    """Returns how many NVIDIA GPUs the driver shows this process; None if it cannot be asked.

    It asks NVML, the driver's library, through nvidia-ml-py (the extra ``nvidia``), and does not
    initialize CUDA. A cgroup hides GPUs from the driver; CUDA_VISIBLE_DEVICES does not.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return None
