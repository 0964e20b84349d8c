"""Whether the driver knows a task's GPUs, and how the tasks share GPUs and reduce gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_resolver.cluster.addresses import Task
from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.preflight.result import OK, SKIPPED, WARNING, Result, result_of
from slurm_resolver.slurm.gpu_variables import count_driver_gpus
from slurm_resolver.start.transport import TaskDevices, find_transport
from slurm_resolver.wording import counted


def check_driver(cluster: Cluster) -> Result:
    """Checks that this task sees what Slurm shows it, and that the driver knows all of it."""
    decision = cluster.gpu_decision
    assert cluster.task
    problem = decision.conflict
    driver = count_driver_gpus()
    if not problem and driver is not None and decision.devices and decision.visible_before:
        lost = len(decision.visible_before) - driver
        if lost > 0:
            problem = (
                f"the driver does not know {lost} of the GPUs that Slurm shows: leave out the node "
                f"(sbatch --exclude={cluster.task.node}), and tell its administrators"
            )
    return result_of("gpus", [problem], "the driver knows all", WARNING)


def check_gpus(devices: Mapping[int, TaskDevices], tasks: Sequence[Task]) -> Result:
    """Returns the result for the tasks that use GPUs, by rank.

    In a cluster with parameter servers, no task uses NCCL; nor does the evaluator.
    """
    if not devices:
        return Result("gpus", SKIPPED, "no task has any, according to its variables")
    training = {rank: own for rank, own in devices.items() if tasks[rank].job != "evaluator"}
    if len(training) < 2 or any(task.job == "ps" for task in tasks):
        return Result("gpus", OK, f"{counted(len(devices), 'task')} with GPUs")
    transport = find_transport(training, "rank {}".format)
    if transport.remedy:
        return Result("gpus", WARNING, f"{transport.sentence}: {transport.remedy}")
    return Result("gpus", OK, transport.sentence)
