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
from slurm_resolver.slurm.step import SlurmStep

Devices = tuple[str, ...]

CUDA = SlurmStep.cuda_devices.name
_ROCR = SlurmStep.rocr_devices.name
_HIP = SlurmStep.hip_devices.name
_ORDINAL = SlurmStep.ordinal_devices.name
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
        others: the devices of every other variable that is set, by its name.
        rocm: whether `name` is ROCR_VISIBLE_DEVICES and AMD's ROCm reads it. ROCm then numbers the
            devices of all other variables among those that ROCR_VISIBLE_DEVICES leaves ("GPU
            Isolation Techniques" in ROCm's documentation).
    """

    name: str
    devices: Devices | None
    others: Mapping[str, Devices]
    rocm: bool = False

    @property
    def text(self) -> str:
        """The variable with its value, for messages."""
        return f"{self.name}={','.join(self.devices or ())}"

    @property
    def is_misread(self) -> bool:
        """Whether ROCm would find other devices, or none, as Slurm sets all variables alike."""
        devices = self.devices or ()
        return self.rocm and devices in self.others.values() and devices != numbered(devices)

    def settings_for(self, devices: Devices) -> dict[str, str]:
        """Returns the variables to set so that the process sees only these of `self.devices`.

        Raises:
            GpuError: where another variable that is set shows other devices.
        """
        text = ",".join(devices)
        settings = {self.name: text}
        for name, shown in self.others.items():
            if self.rocm:
                settings[name] = ",".join(numbered(devices))
            elif shown == self.devices or not devices:
                settings[name] = text
            elif name != _HIP:
                raise GpuError(
                    f"{self.text}, but {name}={','.join(shown)}; expected the same devices in "
                    "both, as Slurm sets them. Unset the one that Slurm did not set."
                )
        return settings


def numbered(devices: Devices) -> Devices:
    """Returns the numbers of as many devices, from 0 on."""
    return tuple(map(str, range(len(devices))))


def read_visible_devices(step: SlurmStep) -> VisibleDevices:
    """Returns the devices that the step's variables show to this task.

    Raises:
        GpuError: for a value that is not a list of devices, or that names one twice.
    """
    # The first of these that is set shows the process its devices.
    texts = {
        CUDA: step.cuda_devices,
        _ROCR: step.rocr_devices,
        _HIP: step.hip_devices,
        _ORDINAL: step.ordinal_devices,
    }
    found = {name: _parse(name, text) for name, text in texts.items() if text is not None}
    is_amd = _AMD_DRIVER.exists()
    # Slurm sets these two only beside CUDA's: something has unset that one.
    if not found or (found.keys() == {_ROCR, _ORDINAL} and not is_amd):
        return VisibleDevices(name=CUDA, devices=None, others={})
    if _ROCR in found and (CUDA not in found or is_amd):
        devices = found.pop(_ROCR)
        for name in (_HIP, CUDA, _ORDINAL):
            if name in found:
                devices = _select(devices, name, found[name])
        return VisibleDevices(name=_ROCR, devices=devices, others=found, rocm=True)
    first = next(iter(found))
    return VisibleDevices(name=first, devices=found.pop(first), others=found)


def _select(devices: Devices, name: str, shown: Devices) -> Devices:
    """Returns the devices of ROCR_VISIBLE_DEVICES that another variable of AMD's leaves."""
    if shown == devices:  # Slurm sets all of them alike
        return devices
    if set(shown) <= set(numbered(devices)):
        return tuple(devices[int(number)] for number in shown)
    raise GpuError(
        f"{name}={','.join(shown)}: expected numbers below {len(devices)}, which count the devices "
        f"of {_ROCR}={','.join(devices)}. Unset {name}."
    )


def _parse(name: str, text: str) -> Devices:
    """Reads a list of devices, which ends at the first entry that hides devices (-1)."""
    devices = []
    for device in text.split(",") if text.strip() else ():
        device = device.strip()
        if not _DEVICE.fullmatch(device) or device in devices:
            if re.fullmatch("-[0-9]+|NoDevFiles", device):
                break
            reason = "named twice" if device in devices else "not a device"
            raise GpuError(
                f"{name}={text!r}: {device!r} is {reason}; expected devices such as 0,1 or GPU-… "
                "or MIG-…, separated by commas. Unset the variable, and let Slurm set it."
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
