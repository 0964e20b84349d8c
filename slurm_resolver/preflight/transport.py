"""Whether TensorFlow can use a task's GPUs, and which library reduces the gradients.

TensorFlow's strategy uses NCCL only if its CommunicationOptions ask for it; otherwise the gradients
of GPUs go by gRPC (``AssignCollectiveType`` in collective_param_resolver_local.cc). NCCL needs GPUs
that belong to one process only, and supports no MIG slices.

NCCL copies directly between two GPUs of a node where a process may open both, even if
CUDA_VISIBLE_DEVICES hides one of them (``p2pCanConnect`` in NCCL's src/transport/p2p.cc). Where the
site confines each task to its own GPUs (cgroup.conf(5), ConstrainDevices), NCCL copies through the
host's memory. Slurm then numbers the GPUs of each task from 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slurm_resolver.cluster.addresses import Task
from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination import NameOf
from slurm_resolver.preflight.result import OK, SKIPPED, WARNING, Result
from slurm_resolver.slurm.gpu_variables import count_driver_gpus, numbered

# The values of SLURMD_TRES_BIND with which Slurm gives no GPU to two tasks.
_BOUND_APART = re.compile(r"gpu:(?:verbose,)?(?:per_task|single:1\b)")
CUDA_REMEDY = "pip uninstall tensorflow-cpu, then pip install 'tensorflow[and-cuda]'"
_DRIVER = Path("/proc/driver/nvidia/version")


class TaskDevices(NamedTuple):
    """What a task that trains sends to the others about its GPUs."""

    node: str
    gpus: Sequence[str] | None  # names that mean the same in all tasks of the node
    usable: int  # the number of GPUs that TensorFlow can use
    confined: bool = False  # whether the site hides the node's other GPUs from this task
    slurms: str = ""  # the first of SLURM_STEP_GPUS, the same in all confined tasks of a node


class Transport(NamedTuple):
    """Which way the gradients go."""

    nccl: bool
    sentence: str  # which way, and why
    remedy: str = ""  # what to do for a faster way; "" if nothing can be done


def task_devices(cluster: Cluster, usable: int) -> TaskDevices:
    """Returns what this task sends to the others; TensorFlow has found `usable` GPUs."""
    task = cluster.task
    decision = cluster.gpu_decision
    assert task is not None
    if decision.devices is None:
        return TaskDevices(task.node, None, usable)
    step = cluster.step
    shown = decision.visible_before or ()
    slurms = step.step_gpus.split(",") if step.step_gpus else shown
    # Where the site confines tasks to their GPUs, Slurm numbers those of each task from 0.
    from_zero = shown == numbered(shown) and len(shown) == len(slurms)
    if len(shown) >= (step.gpus_on_node or 0) or not from_zero:
        return TaskDevices(task.node, decision.devices, usable)
    names = None
    if _BOUND_APART.search(step.tres_bind or ""):
        names = [f"{number} of local rank {task.local_rank}" for number in decision.devices]
    return TaskDevices(task.node, names, usable, True, slurms[0])


def find_transport(tasks: Mapping[int, TaskDevices], name_of: NameOf) -> Transport:
    """Returns which way the gradients go.

    `tasks` are all that train together, by rank, so that all compute the same result.
    """

    def slow(why: str, remedy: str = "") -> Transport:
        return Transport(False, f"gradients go by gRPC, slow: {why}", remedy)

    computes = any(task.usable for task in tasks.values())
    hidden = ""
    first_on: dict[str, int] = {}  # the first task of each node
    owners: dict[tuple[str, str], int] = {}  # by node and GPU
    for rank, (node, gpus, usable, confined, slurms) in tasks.items():
        name = name_of(rank)
        first = first_on.setdefault(node, rank)
        both = f"{name_of(first)} and {name}"
        if confined and tasks[first].confined and tasks[first].slurms != slurms:
            return slow(
                f"{both} see a GPU 0, but SLURM_STEP_GPUS has {tasks[first].slurms} and {slurms}: "
                "something sets CUDA_VISIBLE_DEVICES after srun",
                "remove that line of the program or script",
            )
        if not computes:
            continue
        if not usable:
            return slow(f"TensorFlow finds no GPU in {name}")
        if any(gpu.startswith("MIG-") for gpu in gpus or ()):
            return slow(f"{name} has a MIG slice")
        if first != rank:
            if gpus is None or tasks[first].gpus is None:
                return slow(
                    f"{both} may share a GPU",
                    "start with srun --gpus-per-node and without --gpu-bind",
                )
            if confined and not hidden:
                hidden = f"{both} cannot open each other's GPUs"
        for gpu in gpus or ():
            owner = owners.setdefault((node, gpu), rank)
            if owner != rank:
                return slow(
                    f"{name_of(owner)} shares GPU {gpu} with {name}",
                    "start one task for each GPU, without --gpu-bind and --ntasks-per-gpu",
                )
    if not computes:
        return Transport(False, "gradients go by gRPC: no task computes on a GPU")
    if hidden:
        return Transport(
            True,
            f"gradients go by NCCL, through the host's memory: {hidden}",
            "start with srun --gpus-per-node, without --gpus-per-task and --gpu-bind; each task "
            "then takes its share",
        )
    return Transport(True, "gradients go by NCCL")


def check_driver(cluster: Cluster) -> Result:
    """Checks that this task sees what Slurm shows it, and that the driver knows all of it."""
    decision = cluster.gpu_decision
    if decision.conflict:
        return Result("gpus", WARNING, decision.conflict)
    driver = count_driver_gpus()
    shown = decision.visible_before if decision.devices else None
    lost = 0 if shown is None or driver is None else len(shown) - driver
    if cluster.task is None or lost <= 0:
        return Result("gpus", OK, "the driver knows all")
    return Result(
        "gpus",
        WARNING,
        f"the driver does not know {lost} of the GPUs that Slurm shows: leave out the node (sbatch "
        f"--exclude={cluster.task.node}), and tell its administrators",
    )


def check_gpus(devices: Mapping[int, TaskDevices], tasks: Sequence[Task]) -> Result:
    """Returns the result for the tasks that use GPUs, by rank.

    In a cluster with parameter servers, no task uses NCCL; nor does the evaluator.
    """
    if not devices:
        return Result("gpus", SKIPPED, "no task has any, according to its variables")
    users = Counter(
        (node, name)
        for rank, (node, gpus, number, *_) in devices.items()
        # GPUs without common names are taken to be the task's own.
        for name in gpus or [f"{index} of rank {rank}" for index in range(number)]
    )
    shared = sum(number > 1 for number in users.values())
    how = f"{shared} of them shared by tasks" if shared else "each used by one task"
    use = f"{len(users)}, {how}"
    training = {rank: own for rank, own in devices.items() if tasks[rank].job != "evaluator"}
    if len(training) < 2 or any(task.job == "ps" for task in tasks):
        return Result("gpus", OK, use)
    _, sentence, remedy = find_transport(training, "rank {}".format)
    if remedy:
        return Result("gpus", WARNING, f"{sentence}: {remedy}")
    return Result("gpus", OK, f"{use}; {sentence}")


def why_no_gpu(cuda: bool, rocm: bool) -> str:
    """Returns why TensorFlow, built for `cuda` or `rocm`, finds no GPU, and what to do."""
    if not cuda and not rocm:
        return f"TensorFlow was built without CUDA: {CUDA_REMEDY}"
    if cuda and not _DRIVER.exists():
        return "NVIDIA's driver is not loaded on this node: tell its administrators"
    return (
        "a library is missing, which TensorFlow names at its start (Cannot dlopen some GPU "
        "libraries): pip install 'tensorflow[and-cuda]'"
    )
