"""Whether TensorFlow can use a task's GPUs, and which library reduces the gradients.

TensorFlow's strategy uses NCCL only if its CommunicationOptions ask for it; otherwise the gradients
of GPUs go by gRPC (``AssignCollectiveType`` in collective_param_resolver_local.cc). NCCL needs GPUs
that belong to one process only, and supports no MIG slices.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
from pathlib import Path
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.slurm.gpu_variables import driver_gpu_uuids

# The values of SLURMD_TRES_BIND with which Slurm gives no GPU to two tasks.
_BOUND_APART = re.compile(r"gpu:(?:verbose,)?(?:per_task|single:1\b)")
_DRIVER = Path("/proc/driver/nvidia/version")


class TaskDevices(NamedTuple):
    """What a task that trains tells the others about its GPUs."""

    node: str
    gpus: Optional[Sequence[str]]  # names that mean the same in all tasks of the node
    usable: int  # the number of GPUs that TensorFlow can use


class Transport(NamedTuple):
    """Which way the gradients go."""

    nccl: bool
    sentence: str  # which way, and why
    remedy: str = ""  # what to do to get NCCL; "" if nothing can be done


def task_devices(cluster: Cluster, usable: int) -> TaskDevices:
    """Returns what this task tells the others; TensorFlow has found `usable` GPUs."""
    task, step, decision = cluster.task, cluster.step, cluster.gpu_decision
    assert task is not None
    if decision is None or decision.devices is None:
        return TaskDevices(task.node, None, usable)
    gpus: Optional[Sequence[str]] = decision.devices
    shown = decision.visible_before or ()
    if len(shown) < (step.gpus_on_node or 0) and shown == tuple(map(str, range(len(shown)))):
        # Where the site confines tasks to their GPUs, Slurm numbers those of each task from 0.
        uuids = driver_gpu_uuids()
        if uuids is not None and len(uuids) == len(shown):
            among = ",".join(sorted(uuids))
        else:
            apart = _BOUND_APART.search(step.tres_bind or "")
            among = f"those of local rank {task.local_rank}" if apart else ""
        gpus = [f"{number} of {among}" for number in decision.devices] if among else None
    return TaskDevices(task.node, gpus, usable)


def find_transport(tasks: Mapping[int, TaskDevices], name_of: Callable[[int], str]) -> Transport:
    """Returns which way the gradients go.

    `tasks` are all that train together, by rank, so that all compute the same result.
    """
    if not any(task.usable for task in tasks.values()):
        return Transport(False, "gradients go by gRPC: no task computes on a GPU")
    slow = "gradients go by gRPC, slow: "
    on_node: Dict[str, List[int]] = {}
    for rank, task in tasks.items():
        if not task.usable:
            return Transport(False, f"{slow}TensorFlow finds no GPU in {name_of(rank)}")
        if any(gpu.startswith("MIG-") for gpu in task.gpus or ()):
            return Transport(False, f"{slow}{name_of(rank)} has a MIG slice")
        on_node.setdefault(task.node, []).append(rank)
    for one, other in itertools.chain.from_iterable(
        itertools.combinations(ranks, 2) for ranks in on_node.values()
    ):
        devices, others = tasks[one].gpus, tasks[other].gpus
        if devices is None or others is None:
            return Transport(
                False,
                f"{slow}{name_of(one)} and {name_of(other)} may share a GPU",
                "start with srun --gpus-per-node and without --gpu-bind, or install "
                "'slurm_resolver[nvidia]', which asks the driver",
            )
        shared = [device for device in devices if device in others]
        if shared:
            return Transport(
                False,
                f"{slow}{name_of(one)} shares GPU {shared[0]} with {name_of(other)}",
                "start one task for each GPU, without --gpu-bind and --ntasks-per-gpu",
            )
    return Transport(True, "gradients go by NCCL")


def without_cuda() -> str:
    """Returns what to do if TensorFlow was built without CUDA and ROCm; else ''."""
    if _is_built_for("cuda") is False and not _is_built_for("rocm"):
        return (
            "this task has GPUs, but TensorFlow was built without CUDA: pip uninstall "
            "tensorflow-cpu, then pip install 'tensorflow[and-cuda]'"
        )
    return ""


def why_no_gpu() -> str:
    """Returns why TensorFlow finds no GPU in a task that has some, and what to do."""
    if _is_built_for("cuda") and not _DRIVER.exists():
        return "NVIDIA's driver is not loaded on this node: tell its administrators"
    return without_cuda() or (
        "a library is missing, which TensorFlow names at its start (Cannot dlopen some GPU "
        "libraries): pip install 'tensorflow[and-cuda]'"
    )


def _is_built_for(name: str) -> Optional[bool]:
    """Reads how TensorFlow was built, without importing it; None if that is unknown."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "python" / "platform" / "build_info.py"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    found = re.search(rf"'is_{name}_build', (True|False)", text)
    return found and found[1] == "True"
