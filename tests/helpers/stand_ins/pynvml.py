"""A stand-in for nvidia-ml-py, for machines that have no GPU.

The variable NVML_STAND_IN holds, as JSON, what the driver tells on each node, by hostname ("*" for
the others): the version of the driver, and of each GPU the fields of `Gpu`. A node that is not in
it has no driver.
"""

# ruff: noqa: N802 (the names are its own)

from __future__ import annotations

import json
import os
import socket
from types import SimpleNamespace
from typing import Any, Dict, List, NamedTuple, Tuple

NVML_FEATURE_ENABLED = 1
NVML_VOLATILE_ECC = 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1


class NVMLError(Exception):
    """What the driver answers in place of an answer."""


class Gpu(NamedTuple):
    """One GPU, or with `parent` a MIG slice: sizes in GiB, users by process id."""

    uuid: str
    model: str = "NVIDIA A100-SXM4-80GB"
    total: int = 80
    free: int = 79
    users: Tuple[int, ...] = ()
    ecc: int = 0
    retire: int = 0
    remap: Tuple[int, int] = (0, 0)  # pending, failed
    parent: str = ""


def _node() -> Dict[str, Any]:
    nodes = json.loads(os.environ.get("NVML_STAND_IN", "{}"))
    node = nodes.get(socket.gethostname(), nodes.get("*"))
    if node is None:
        raise NVMLError("Driver Not Loaded")
    return dict(node)


def _gpus() -> List[Gpu]:
    return [Gpu(**gpu) for gpu in _node()["gpus"]]


def nvmlInit() -> None:
    """Fails where there is no driver."""
    _node()


def nvmlShutdown() -> None:
    """Does nothing."""


def nvmlSystemGetDriverVersion() -> str:
    """Returns the version of the driver."""
    return str(_node()["driver"])


def nvmlDeviceGetCount() -> int:
    """Returns the number of GPUs, without slices."""
    return sum(not gpu.parent for gpu in _gpus())


def nvmlDeviceGetHandleByIndex(index: int) -> Gpu:
    """Returns a GPU."""
    gpus = [gpu for gpu in _gpus() if not gpu.parent]
    if index >= len(gpus):
        raise NVMLError("Invalid Argument")
    return gpus[index]


def nvmlDeviceGetHandleByUUID(uuid: str) -> Gpu:
    """Returns a GPU or a slice."""
    found = [gpu for gpu in _gpus() if gpu.uuid == uuid]
    if not found:
        raise NVMLError("Not Found")
    return found[0]


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: Gpu) -> Gpu:
    """Returns the GPU of a slice."""
    return nvmlDeviceGetHandleByUUID(handle.parent)


def nvmlDeviceGetUUID(handle: Gpu) -> str:
    """Returns its name."""
    return handle.uuid


def nvmlDeviceGetName(handle: Gpu) -> bytes:
    """Returns its model, as older versions of the library do, in bytes."""
    return handle.model.encode()


def nvmlDeviceGetMemoryInfo(handle: Gpu) -> SimpleNamespace:
    """Returns its memory."""
    return SimpleNamespace(total=handle.total * 2**30, free=handle.free * 2**30)


def nvmlDeviceGetComputeRunningProcesses(handle: Gpu) -> List[SimpleNamespace]:
    """Returns the processes on it."""
    return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in handle.users]


def nvmlDeviceGetTotalEccErrors(handle: Gpu, kind: int, counter: int) -> int:
    """Returns its errors; a slice has none of its own."""
    if handle.parent or (kind, counter) != (NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC):
        raise NVMLError("Not Supported")
    return handle.ecc


def nvmlDeviceGetRetiredPagesPendingStatus(handle: Gpu) -> int:
    """Returns whether pages are to be retired; newer GPUs remap rows instead."""
    if "A100" in handle.model:
        raise NVMLError("Not Supported")
    return handle.retire


def nvmlDeviceGetRemappedRows(handle: Gpu) -> Tuple[int, int, int, int]:
    """Returns the rows that were remapped, and whether some are to be, or could not be."""
    if "A100" not in handle.model:
        raise NVMLError("Not Supported")
    return (3, 0, *handle.remap)
