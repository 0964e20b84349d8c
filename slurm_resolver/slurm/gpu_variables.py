"""The variables that show a process its GPUs: how they are read, narrowed and emptied.

CUDA_VISIBLE_DEVICES is NVIDIA's; ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and
GPU_DEVICE_ORDINAL are AMD's, ZE_AFFINITY_MASK is Intel's. Slurm gives those that the site's
gres.conf names the same value.
"""

from __future__ import annotations

import re
from typing import Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.errors import GpuError
from slurm_resolver.slurm.step import SlurmStep

Devices = Tuple[str, ...]

CUDA = SlurmStep.cuda_devices.name
_ROCR = SlurmStep.rocr_devices.name
_HIP = SlurmStep.hip_devices.name
_ZE = SlurmStep.ze_devices.name
# Those that Slurm sets, all to the same value.
SET_BY_SLURM = (CUDA, _ROCR, _ZE, SlurmStep.ordinal_devices.name)
# Slurm leaves HIP_VISIBLE_DEVICES as it is; its indices count what the others show.
GPU_VARIABLES = (*SET_BY_SLURM, _HIP)
# The first one that is set is the one that decisions are taken on.
_BY_PRECEDENCE = (
    SlurmStep.cuda_devices,
    SlurmStep.rocr_devices,
    SlurmStep.hip_devices,
    SlurmStep.ze_devices,
    SlurmStep.ordinal_devices,
)

# An index, Intel's index of a tile, or a UUID, which may be shortened.
_DEVICE = re.compile(r"[0-9]{1,5}(\.[0-9]{1,5})?|(GPU|MIG)-[0-9A-Za-z/-]+")
_NO_DEVICE = re.compile(r"-[0-9]+|NoDevFiles")
# Level Zero takes an empty mask for "all" and skips a device that does not exist.
_HIDDEN = {_ZE: "65535"}


class Visible(NamedTuple):
    """What the variables show: the devices, and the name of the variable that says so.

    `devices` is None where no variable is set. `others` are the further variables that are set.
    """

    name: str
    devices: Optional[Devices]
    others: Mapping[str, Devices]

    @property
    def text(self) -> str:
        """The variable and its value, as messages show them."""
        return f"{self.name}={','.join(self.devices or ())}"

    def narrowed(self, devices: Devices) -> Dict[str, str]:
        """Returns the variables to set so that of `self.devices` these are left."""
        settings = {self.name: _written(self.name, devices)}
        for name, shown in self.others.items():
            if name == _HIP and self._hip_counts_within_rocr(shown):
                # HIP's indices count what ROCR_VISIBLE_DEVICES leaves, not the node's devices.
                settings[name] = ",".join(map(str, range(len(devices))))
            elif shown == self.devices or not devices:
                settings[name] = _written(name, devices)
            elif name != _HIP:
                raise GpuError(
                    f"{self.text}, but {name}={','.join(shown)}; expected the same devices in "
                    "both, as Slurm sets them. Unset the one that is not Slurm's."
                )
        return settings

    def _hip_counts_within_rocr(self, shown: Devices) -> bool:
        rocr = self.name == _ROCR or _ROCR in self.others
        return rocr and shown == tuple(map(str, range(len(shown))))


def read_visible(step: SlurmStep) -> Visible:
    """Reads the variables.

    Raises:
        GpuError: for a value that is no list of devices, or that names one twice.
    """
    found = {}
    for variable in _BY_PRECEDENCE:
        text = getattr(step, variable.field)
        if text is not None:
            found[variable.name] = _parse(variable.name, text)
    if not found:
        return Visible(CUDA, None, {})
    (name, devices), *others = found.items()
    return Visible(name, devices, dict(others))


def _parse(name: str, text: str) -> Devices:
    """As in CUDA, what is no device (-1) hides itself and all after it."""
    devices = []
    for token in text.split(",") if text.strip() else ():
        token = token.strip()
        if _NO_DEVICE.fullmatch(token):
            break
        if _DEVICE.fullmatch(token) is None or token in devices:
            reason = "named twice" if token in devices else "no device"
            raise GpuError(
                f"{name}={text!r}: {token!r} is {reason}; expected devices such as 0,1 or GPU-… or "
                "MIG-…, separated by commas. Unset it, and let Slurm set it."
            )
        devices.append(token)
    if name == _ZE and devices == [_HIDDEN[_ZE]]:
        devices = []
    return tuple(devices)


def _written(name: str, devices: Sequence[str]) -> str:
    return ",".join(devices) if devices else _HIDDEN.get(name, "")


def count_with_driver() -> Optional[int]:
    """Returns how many NVIDIA GPUs the driver shows this process; None where none can be asked.

    Only a cgroup narrows what the driver shows, not CUDA_VISIBLE_DEVICES. It needs nvidia-ml-py
    (``pip install 'slurm_resolver[nvidia]'``), and does not initialise CUDA.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
