"""What the NVIDIA driver tells of GPUs: who else uses them, their memory, their errors.

It is asked through nvidia-ml-py (``pip install 'slurm_resolver[nvidia]'``), which initialises no
CUDA. What a GPU or an older driver cannot tell is left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.slurm.gpu_variables import ask_driver

_SHARES_BY_INTENT = "nvidia-cuda-mps"  # begins the names of the processes of NVIDIA's MPS


class GpuState(NamedTuple):
    """What the driver tells of one GPU, or of a MIG slice.

    Attributes:
        device: as CUDA_VISIBLE_DEVICES names it.
        uuid: the driver's name, which is the same in all tasks.
        model: such as "NVIDIA A100-SXM4-80GB".
        total, free: bytes of its memory; 0 where they are not known.
        users: the processes on it that are not of this job: their ids and what they run, which is
            "" where that cannot be seen from here.
        errors: what is wrong with its memory.
    """

    device: str
    uuid: str
    model: str
    total: int = 0
    free: int = 0
    users: Sequence[Tuple[int, str]] = ()
    errors: Sequence[str] = ()


class DriverState(NamedTuple):
    """The version of the driver, and what it tells of a task's GPUs."""

    version: str
    gpus: Sequence[GpuState]


def read_driver_state(
    devices: Sequence[str], job_id: Optional[str], shared: bool = False
) -> Optional[DriverState]:
    """Returns what the driver tells of these devices; None where it cannot be asked.

    Args:
        devices: as CUDA_VISIBLE_DEVICES names them. Numbers are taken in the order of the PCI bus,
            as Slurm means them.
        job_id: whose processes may use them.
        shared: whether Slurm shares them among jobs, as shards: then nobody else is a fault.
    """

    def ask(nvml: Any) -> DriverState:
        driver = _Driver(nvml)
        version = driver.tell(nvml.nvmlSystemGetDriverVersion) or ""
        states = [driver.read_gpu(device, job_id, shared) for device in devices]
        return DriverState(version, [state for state in states if state is not None])

    return ask_driver(ask)


class _Driver:
    """Asks the driver, and takes None for an answer."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def tell(self, question: Any, *arguments: Any) -> Any:
        try:
            answer = question(*arguments)
        except self._nvml.NVMLError:
            return None
        return answer.decode() if isinstance(answer, bytes) else answer

    def ask(self, name: str, *arguments: Any) -> Any:
        """Asks by a function that older versions of the library may not have."""
        question = getattr(self._nvml, name, None)
        return None if question is None else self.tell(question, *arguments)

    def read_gpu(self, device: str, job_id: Optional[str], shared: bool) -> Optional[GpuState]:
        handle = self._find(device)
        if handle is None:
            return None
        uuid = self.ask("nvmlDeviceGetUUID", handle) or device
        model = self.ask("nvmlDeviceGetName", handle) or ""
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
        processes = self.ask("nvmlDeviceGetComputeRunningProcesses", handle) or []
        users = [(process.pid, _command(process.pid)) for process in processes]
        if shared or any(command.startswith(_SHARES_BY_INTENT) for _, command in users):
            memory, users = None, []
        users = [(pid, command) for pid, command in users if not _is_of_job(pid, job_id)]
        total, free = (int(memory.total), int(memory.free)) if memory is not None else (0, 0)
        return GpuState(device, uuid, model, total, free, users, self._find_errors(device, handle))

    def _find(self, device: str) -> Any:
        """Returns the driver's handle of a device; None where it knows none."""
        nvml = self._nvml
        if device.isdigit():
            return self.tell(nvml.nvmlDeviceGetHandleByIndex, int(device))
        if device.startswith("MIG-GPU-"):  # by its GPU, as older drivers named slices
            device = device[len("MIG-") :].partition("/")[0]
        elif device.startswith("MIG-"):
            return self.tell(nvml.nvmlDeviceGetHandleByUUID, device)
        for number in range(self.tell(nvml.nvmlDeviceGetCount) or 0):
            handle = self.tell(nvml.nvmlDeviceGetHandleByIndex, number)
            uuid = handle is not None and self.tell(nvml.nvmlDeviceGetUUID, handle)
            if uuid and uuid.startswith(device):  # which may be shortened
                return handle
        return None

    def _find_errors(self, device: str, handle: Any) -> List[str]:
        """Returns what is wrong with the memory, which slices have in common with their GPU."""
        nvml = self._nvml
        if device.startswith("MIG-") and not device.startswith("MIG-GPU-"):
            handle = self.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        if handle is None:
            return []
        errors = []
        kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        count = self.ask("nvmlDeviceGetTotalEccErrors", handle, kind, counter)
        if count:
            errors.append(f"{count} uncorrected ECC error{'s'[: count > 1]} since it was reset")
        pending = self.ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)
        if pending == nvml.NVML_FEATURE_ENABLED:
            errors.append("pages of its memory to be retired")
        rows = self.ask("nvmlDeviceGetRemappedRows", handle)
        if rows is not None and rows[2]:
            errors.append("rows of its memory to be remapped")
        if rows is not None and rows[3]:
            errors.append("rows of its memory that could not be remapped")
        return errors


def _command(pid: int) -> str:
    """Returns what a process runs; "" where it cannot be seen, as from inside a container."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _is_of_job(pid: int, job_id: Optional[str]) -> bool:
    """Whether a process belongs to this job, by its cgroup or by its variables."""
    if pid == os.getpid():
        return True
    if job_id is None:
        return False
    if re.search(rf"/job_{re.escape(job_id)}(/|$)", _read(f"/proc/{pid}/cgroup"), re.MULTILINE):
        return True
    return f"SLURM_JOB_ID={job_id}" in _read(f"/proc/{pid}/environ").split("\0")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:  # another user's, or it has ended
        return ""


def note_of(state: Optional[DriverState]) -> Dict[str, Any]:
    """Returns what tasks send each other of it."""
    if state is None:
        return {}
    return {"version": state.version, "gpus": [list(gpu) for gpu in state.gpus]}
