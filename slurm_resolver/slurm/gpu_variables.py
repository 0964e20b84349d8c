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
from slurm_resolver.slurm.foreign_variables import ForeignVariables
from slurm_resolver.slurm.variable_types import Exports

Devices = tuple[str, ...]

CUDA = ForeignVariables.cuda_devices.name
_ROCR = ForeignVariables.rocr_devices.name
_HIP = ForeignVariables.hip_devices.name
_ORDINAL = ForeignVariables.ordinal_devices.name
# The variables that Slurm sets, all to the same value.
SET_BY_SLURM = (CUDA, _ROCR, _ORDINAL)
GPU_VARIABLES = (*SET_BY_SLURM, _HIP)
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


def read_visible_devices(variables: ForeignVariables) -> VisibleDevices:
    """Returns the devices that the variables show to this task.

    Raises:
        GpuError: for a value that is not a list of devices, or that names one twice; and for AMD's
            GPUs, if a variable shows others than those of ROCR_VISIBLE_DEVICES.
    """
    # The first of these that is set shows the process its devices.
    texts = {
        CUDA: variables.cuda_devices,
        _ROCR: variables.rocr_devices,
        _HIP: variables.hip_devices,
        _ORDINAL: variables.ordinal_devices,
    }
    shown = {name: _parse(name, text) for name, text in texts.items() if text is not None}
    # Slurm sets these two only beside CUDA's: something has unset that one.
    if not shown or (shown.keys() == {_ROCR, _ORDINAL} and not _AMD_DRIVER.exists()):
        return VisibleDevices()
    if _ROCR not in shown or (CUDA in shown and not _AMD_DRIVER.exists()):
        first = next(iter(shown))
        return VisibleDevices(name=first, devices=shown[first], shown=shown)
    return _read_for_rocm(shown)


def _read_for_rocm(shown: Mapping[str, Devices]) -> VisibleDevices:
    devices = shown[_ROCR]
    numbers = numbered(devices)
    for name, others in shown.items():
        if others not in (devices, numbers, ()):
            raise GpuError(
                f"{_ROCR}={','.join(devices)}, but {name}={','.join(others)}; expected the same "
                "devices in both, as Slurm sets them, or their numbers for ROCm, "
                f"{','.join(numbers)}. Unset {name}."
            )
    if () in shown.values():
        devices = ()
    return VisibleDevices(name=_ROCR, devices=devices, shown=shown)


def _parse(name: str, text: str) -> Devices:
    """Reads a list of devices, which ends at the first entry that hides devices (-1)."""
    devices = []
    for device in text.split(",") if text.strip() else ():
        device = device.strip()
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
        try:
            return int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
