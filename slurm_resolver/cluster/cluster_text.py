"""A resolved step in words: one line for a task, or a table of all tasks."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_resolver.cluster.addresses import Task
from slurm_resolver.cluster.resolved_step import ResolvedStep
from slurm_resolver.wording import aligned, counted

_NO_CLUSTER = "no cluster: this process trains alone"


def describe_own_task(cluster: ResolvedStep) -> str:
    """Returns one line: ``rank 1 of 4 is worker 0 on n9, port 23001, GPUs 0,1``."""
    task = cluster.task
    if not task:
        return _NO_CLUSTER
    return (
        f"rank {task.rank} of {cluster.num_tasks} is {task.job} {task.index} on {task.node}, "
        f"port {task.address.rpartition(':')[2]}, GPUs {describe_gpus(cluster)}"
    )


def describe_cluster(
    cluster: ResolvedStep, most_tasks: int | None = None, gpus: Sequence[str] = ()
) -> str:
    """Returns the whole cluster, a line per task, and the reason for this task's GPUs.

    Args:
        cluster: any; for an empty one the text says that this process trains alone.
        most_tasks: of a larger cluster only the tasks of the first nodes are shown; None shows all.
        gpus: the GPUs of all tasks by rank, as `describe_gpus`; () if only its own are known.
    """
    if not cluster:
        return _NO_CLUSTER
    node_of = cluster.layout.node_of
    tasks = sorted(cluster.tasks, key=lambda task: node_of[task.rank])[:most_tasks]
    lines = [
        _describe_step(cluster),
        "jobs: " + ", ".join(f"{job} {len(ranks)}" for job, ranks in sorted(cluster.roles.items())),
        *_table(tasks, cluster.task, gpus),
    ]
    left_out = cluster.num_tasks - len(tasks)
    if left_out:
        lines.append(f"… and {counted(left_out, 'more task')}: `slurm-resolver show` prints all")
    lines.append(f"GPUs of this task: {describe_gpus(cluster)} ({cluster.gpu_decision.source})")
    return "\n".join(lines)


def _describe_step(cluster: ResolvedStep) -> str:
    layout = cluster.layout
    return (
        f"job step {cluster.step.name}: {counted(cluster.num_tasks, 'task')} on "
        f"{counted(len(layout.nodes), 'node')}, {layout.distribution} distribution "
        f"(from {layout.source}), ports from {cluster.ports.source}"
    )


def _table(tasks: Sequence[Task], own: Task | None, gpus: Sequence[str]) -> list[str]:
    """Returns a line for each task; that of the first task of each node names the node."""
    rows = [["node", "rank", "local", "task", *(["GPUs"] if gpus else []), "address"]]
    rows += [
        [
            "" if task.local_rank else task.node,
            str(task.rank),
            str(task.local_rank),
            f"{task.job} {task.index}",
            *gpus[task.rank : task.rank + 1],
            task.address + ("  (this task)" if task == own else ""),
        ]
        for task in tasks
    ]
    return aligned(rows, numbers=(1, 2))


def describe_gpus(cluster: ResolvedStep) -> str:
    """Returns the GPUs of this task, such as "0,1", "none" or "unknown"."""
    return "unknown" if cluster.gpus is None else ",".join(cluster.gpus) or "none"
