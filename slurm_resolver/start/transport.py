"""Whether TensorFlow can use a task's GPUs, and which library reduces the gradients.

TensorFlow's strategy uses NCCL only if its CommunicationOptions ask for it; otherwise the gradients
of GPUs use gRPC (``AssignCollectiveType`` in collective_param_resolver_local.cc). NCCL needs GPUs
that belong to one process only. This package does not use it for MIG slices.

NCCL copies directly between two GPUs of a node where a process may open both, even if
CUDA_VISIBLE_DEVICES hides one of them (``p2pCanConnect`` in NCCL's src/transport/p2p.cc). Where the
site confines each task to its own GPUs (cgroup.conf(5), ConstrainDevices), NCCL copies through the
host's memory. Slurm then numbers the GPUs of each task from 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.slurm.gpu_variables import numbered

CUDA_REMEDY = (
    "pip uninstall tensorflow-cpu, then pip install 'tensorflow[and-cuda]'; on aarch64, where pip "
    "has no TensorFlow with CUDA, use NVIDIA's container (nvcr.io/nvidia/tensorflow)"
)
_DRIVER = Path("/proc/driver/nvidia/version")


class TaskDevices(NamedTuple):
    """What a task that trains sends to the others about its GPUs."""

    node: str
    gpus: Sequence[str] | None  # names that mean the same in all tasks of the node
    usable: int  # the number of GPUs that TensorFlow can use
    # the first of SLURM_STEP_GPUS if the site hides the node's other GPUs from this task; it is the
    # same in all such tasks of a node
    confined_to: str = ""


def task_devices(cluster: Cluster, usable: int) -> TaskDevices:
    """Returns what this task sends to the others; TensorFlow has found `usable` GPUs."""
    task = cluster.task
    decision = cluster.gpu_decision
    assert task
    step = cluster.step
    shown = decision.visible_before or ()
    slurms = step.step_gpus.split(",") if step.step_gpus else shown
    names: Sequence[str] | None = cluster.gpus
    confined_to = ""
    # Where the site confines tasks to their GPUs, Slurm numbers those of each task from 0.
    if (
        0 < len(shown) < (step.gpus_on_node or 0)
        and shown == numbered(shown)
        and len(shown) == len(slurms)
    ):
        confined_to = slurms[0]
        names = None
        if step.gpu_binding in ("per_task", "single:1"):  # Slurm gives no GPU to two tasks
            names = [
                f"{number} of local rank {task.local_rank}" for number in decision.devices or ()
            ]
    return TaskDevices(task.node, names, usable, confined_to)


def find_transport(tasks: Mapping[str, TaskDevices]) -> tuple[bool, str, str]:
    """Returns whether NCCL reduces the gradients, why, and what to do for a faster way, or "".

    `tasks` are all that train together, by name, so that all compute the same result.
    """
    if not any(task.usable for task in tasks.values()):
        return False, "gradients use gRPC: no task computes on a GPU", ""
    hidden = ""  # why NCCL copies through the host's memory
    on_node = defaultdict[str, dict[str, TaskDevices]](dict)  # those that are known by now
    for name, task in tasks.items():
        if not task.usable:
            return _slow(f"TensorFlow finds no GPU in {name}")
        if any(gpu.startswith("MIG-") for gpu in task.gpus or ()):
            return _slow(f"{name} has a MIG slice")
        for other_name, other in on_node[task.node].items():
            both = f"{other_name} and {name}"
            if task.confined_to and other.confined_to not in ("", task.confined_to):
                return _slow(
                    f"{both} see a GPU 0, but SLURM_STEP_GPUS has {other.confined_to} and "
                    f"{task.confined_to}: something sets CUDA_VISIBLE_DEVICES after srun",
                    "remove that line of the program or script",
                )
            shared = {*(task.gpus or ())} & {*(other.gpus or ())}
            if shared or task.gpus is None or other.gpus is None:
                return _slow(
                    f"{both} share GPU {min(shared)}" if shared else f"{both} may share a GPU",
                    "start one task for each GPU, with srun --gpus-per-node, without --gpu-bind "
                    "and --ntasks-per-gpu",
                )
            if task.confined_to:
                hidden = f"{both} cannot open each other's GPUs"
        on_node[task.node][name] = task
    if not hidden:
        return True, "gradients use NCCL", ""
    remedy = (
        "start with srun --gpus-per-node, without --gpus-per-task and --gpu-bind; each task then "
        "takes its share"
    )
    return True, f"gradients use NCCL through the host's memory, because {hidden}", remedy


def _slow(why: str, remedy: str = "") -> tuple[bool, str, str]:
    return False, f"gradients use gRPC (slow), because {why}", remedy


def why_no_gpu(cuda: bool, rocm: bool) -> str:
    """Returns why TensorFlow, built for `cuda` or `rocm`, finds no GPU, and what to do."""
    if not cuda and not rocm:
        return f"TensorFlow was built without CUDA: {CUDA_REMEDY}"
    if cuda and not _DRIVER.exists():
        return "NVIDIA's driver is not loaded on this node: tell its administrators"
    return (
        "a library is missing, which TensorFlow names at its start (Cannot dlopen some GPU "
        "libraries): load the site's CUDA or ROCm module; for NVIDIA on x86_64, pip install "
        "'tensorflow[and-cuda]'"
    )
