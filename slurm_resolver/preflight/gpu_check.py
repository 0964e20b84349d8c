"""Whether each task's GPUs are its own, all of them are there, and NCCL can copy between them.

NCCL copies directly between two GPUs of a node where a process may open both, even if
CUDA_VISIBLE_DEVICES hides one of them (``p2pCanConnect`` in NCCL's src/transport/p2p.cc). Where the
site confines each task to its own GPUs (cgroup.conf(5), ConstrainDevices), NCCL copies through the
host's memory. Slurm then numbers the GPUs of each task from 0.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.preflight.result import SKIPPED, WARNING, Result, result_of
from slurm_resolver.preflight.transport import TaskDevices, find_transport, task_devices
from slurm_resolver.slurm.gpu_variables import count_driver_gpus, read_visible_devices


class GpuFacts(NamedTuple):
    """What a task that uses GPUs tells the others."""

    rank: int
    job: str
    devices: Sequence[str]  # that it uses
    from_zero: bool = False  # whether it sees only some of the step's on the node, numbered from 0
    granted: int = 0  # the step's on the node; 0 if unknown
    bind: str = ""  # SLURMD_TRES_BIND
    missing: int = 0  # how many of those that Slurm shows the driver does not know
    names: Optional[Sequence[str]] = None  # as `TaskDevices.gpus`


def gpu_facts(cluster: Cluster) -> Optional[GpuFacts]:
    """Returns what this task tells the others about its GPUs; None if it uses none."""
    task, decision, step = cluster.task, cluster.gpu_decision, cluster.step
    if task is None or decision is None or not decision.devices:
        return None
    shown = read_visible_devices(step).devices or ()
    granted = step.gpus_on_node or 0
    from_zero = len(shown) < granted and shown == tuple(map(str, range(len(shown))))
    driver = None if decision.devices[0].startswith("MIG-") else count_driver_gpus()
    missing = 0 if driver is None else max(0, len(shown) - driver)
    bind = step.tres_bind or ""
    names = task_devices(cluster, len(decision.devices)).gpus
    return GpuFacts(task.rank, task.job, decision.devices, from_zero, granted, bind, missing, names)


def check_gpus(by_node: Mapping[str, Sequence[GpuFacts]], asynchronous: bool) -> Result:
    """Returns the result for the tasks that use GPUs, by node.

    `asynchronous` is whether there are parameter servers: then the tasks do not use NCCL.
    """
    if not by_node:
        return Result("gpus", SKIPPED, "no task has any, as far as the environment tells")
    problems: List[str] = []
    number, shared = 0, 0
    training: Dict[int, TaskDevices] = {}
    for node, tasks in by_node.items():
        problems += [
            f"the driver on {node} does not know {task.missing} of the GPUs that Slurm shows rank "
            f"{task.rank}: do without the node (sbatch --exclude={node}), and tell its "
            "administrators"
            for task in tasks
            if task.missing
        ][:1]
        from_zero = len(tasks) > 1 and all(task.from_zero for task in tasks)
        use_nccl = [t for t in tasks if not asynchronous and t.job != "evaluator"]
        training.update({t.rank: TaskDevices(node, t.names, len(t.devices)) for t in use_nccl})
        users: Dict[str, List[int]] = {}
        for task in tasks:
            for device in task.devices:
                name = f"{device} of rank {task.rank}" if from_zero else device
                users.setdefault(name, []).append(task.rank)
        number += len(users)
        shared += sum(len(ranks) > 1 for ranks in users.values())
        if from_zero and len(use_nccl) > 1:
            problems.append(
                f"the tasks on {node} have GPUs that are numbered from 0 in each "
                f"({tasks[0].bind or 'no SLURMD_TRES_BIND'}): NCCL cannot copy between them "
                "directly, or the tasks share them. Ask for the GPUs by "
                f"--gpus-per-node={tasks[0].granted}, without --gpus-per-task and --gpu-bind; "
                "each task then takes its share"
            )
    transport = find_transport(training, "rank {}".format)
    if transport.remedy and not any("numbered from 0" in problem for problem in problems):
        problems.append(f"{transport.sentence}: {transport.remedy}")
    use = f"{shared} of them shared by tasks" if shared else "each used by one task"
    way = f"; {transport.sentence}" if len(training) > 1 else ""
    return result_of("gpus", problems, f"{number}, {use}{way}", WARNING)
