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
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.slurm.variable_types import Exports

Devices = tuple[str, ...]

CUDA = SlurmStep.cuda_devices.name
_ROCR = SlurmStep.rocr_devices.name
_ORDINAL = SlurmStep.ordinal_devices.name
# The variables that Slurm sets, all to the same value.
SET_BY_SLURM = (CUDA, _ROCR, _ORDINAL)
# The first of these that is set shows the process its devices.
_VARIABLES = (
    SlurmStep.cuda_devices,
    SlurmStep.rocr_devices,
    SlurmStep.hip_devices,
    SlurmStep.ordinal_devices,
)
GPU_VARIABLES = tuple(variable.name for variable in _VARIABLES)
_AMD_DRIVER = Path("/dev/kfd")

# An index, or a UUID, which may be shortened.
_DEVICE = re.compile(r"[0-9]{1,5}|(GPU|MIG)-[0-9A-Za-z/-]+")


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
    for variable in _VARIABLES:
        text = getattr(step, variable.field)
        if text is not None:
            shown[variable.name] = _parse(variable.name, text)
    name = next(iter(shown), CUDA)
    if _ROCR not in shown:
        return VisibleDevices(name, shown.get(name), shown)
    if not _AMD_DRIVER.exists():
        if shown.keys() == {_ROCR, _ORDINAL}:
            # Slurm sets these two only beside CUDA's: something has unset that one.
            return VisibleDevices()
        if name == CUDA:
            return VisibleDevices(name, shown[name], shown)
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
        if not _DEVICE.fullmatch(device) or device in devices:
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
