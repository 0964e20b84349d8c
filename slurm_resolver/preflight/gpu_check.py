"""How the tasks share GPUs and reduce gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_resolver.cluster.addresses import Task
from slurm_resolver.preflight.result import OK, SKIPPED, WARNING, Result
from slurm_resolver.start.transport import TaskDevices, find_transport
from slurm_resolver.wording import counted


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
