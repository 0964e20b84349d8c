"""What a process can use of the MIG slices that it is given.

Source: "CUDA Device Enumeration" in NVIDIA's Multi-Instance GPU User Guide: CUDA shows a process a
single slice, and no whole GPU beside it.
"""

from __future__ import annotations

from typing import Optional

from slurm_resolver.slurm.gpu_variables import Devices


def is_slice(device: str) -> bool:
    """Whether a device is a slice of a GPU, which Slurm names by its UUID."""
    return device.startswith("MIG-")


def usable_at_once(devices: Devices) -> Devices:
    """Returns those of a task's devices that one process can use together.

    They are all of them where none is a slice, else the whole GPUs, or the first slice.
    """
    whole = tuple(device for device in devices if not is_slice(device))
    return devices if len(whole) == len(devices) else whole or devices[:1]


def seen_by_cuda(devices: Optional[Devices]) -> Optional[Devices]:
    """Returns what CUDA shows of these devices: the first slice, where there is one, else all."""
    return next(((device,) for device in devices or () if is_slice(device)), devices)
