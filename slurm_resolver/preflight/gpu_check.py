"""Whether the driver knows a task's GPUs, and how the tasks share GPUs and reduce gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from slurm_resolver.cluster.addresses import Task
from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.preflight.result import OK, SKIPPED, WARNING, Result
from slurm_resolver.slurm.gpu_variables import count_driver_gpus
from slurm_resolver.start.transport import TaskDevices, find_transport


def check_driver(cluster: Cluster) -> Result:
    """Checks that this task sees what Slurm shows it, and that the driver knows all of it."""
    decision = cluster.gpu_decision
    if decision and decision.conflict:
        return Result("gpus", WARNING, decision.conflict)
    driver = count_driver_gpus()
    shown = decision.visible_before if decision and decision.devices else None
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
