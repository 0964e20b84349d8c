"""A cluster as plain text: what `print` and ``slurm-resolver show`` print, and the log's line."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Dict, List, Optional

from slurm_resolver.cluster.gpus import JOB_WITHOUT_GPUS
from slurm_resolver.cluster.task_gpus import TaskGpus
from slurm_resolver.cluster.tasks import Task
from slurm_resolver.wording import counted

if TYPE_CHECKING:
    from slurm_resolver.cluster.cluster import Cluster

NO_CLUSTER = "no cluster: this process trains alone"
MOST_TASKS = 100  # that `print` shows


def describe_own_task(cluster: Cluster) -> str:
    """Returns one line: ``rank 1 of 4 is worker 0 on n9, port 23001, GPUs 0,1``."""
    own = cluster.task
    if own is None:
        return describe_cluster(cluster, 0).partition("\n")[0]
    port = own.address.rpartition(":")[2]
    text = f"rank {own.rank} of {len(cluster.tasks)} is {own.job} {own.index} on {own.node}"
    gpus = cluster.gpus
    if gpus is None:
        return f"{text}, port {port}"
    number = "GPU" if len(gpus) == 1 else "GPUs"
    devices = f"{number} {','.join(gpus)}" if gpus else "no GPUs"
    return f"{text}, port {port}, {devices}"


def describe_cluster(cluster: Cluster, most_tasks: Optional[int] = None) -> str:
    """Returns the whole cluster, a line a task, and the GPUs of this task's node.

    Args:
        cluster: any; for an empty one the text says that this process trains alone.
        most_tasks: of larger clusters the tasks of the first nodes and this task's node; None
            takes all.
    """
    if not cluster.tasks:
        return NO_CLUSTER
    own = cluster.task
    step = f"job step {cluster.job_id or '?'}.{cluster.step_id or '?'}"
    if cluster.job_id is None and own is None:
        step = "planned step"
    by_node: Dict[str, List[Task]] = {}
    for task in cluster.tasks:
        by_node.setdefault(task.node, []).append(task)
    size = f"{counted(len(cluster.tasks), 'task')} on {counted(len(by_node), 'node')}"
    jobs = sorted(Counter(task.job for task in cluster.tasks).items())
    layout = f"{cluster.distribution} distribution (from {cluster.layout_source})"
    lines = [
        f"{step}: {size}, {layout}, ports from {cluster.ports_source}",
        f"jobs: {', '.join(f'{job} {number}' for job, number in jobs)}",
        *_table(by_node, own, most_tasks),
    ]
    if own is not None:
        lines.append(f"GPUs of the tasks on {own.node}:")
    for rank, gpus in sorted(cluster.gpus_on_node().items()):
        mark = "  (this task)" if own is not None and rank == own.rank else ""
        lines.append(f"  rank {rank}: {_devices(gpus)} ({gpus.source}){mark}")
    return "\n".join(lines)


def _devices(gpus: TaskGpus) -> str:
    if gpus.devices is None and gpus.source != JOB_WITHOUT_GPUS:
        return "unknown"
    return ",".join(gpus.devices or ()) or "none"


def _table(
    by_node: Dict[str, List[Task]], own: Optional[Task], most_tasks: Optional[int]
) -> List[str]:
    rows = [("node", "rank", "local", "task", "address")]
    left_out = 0
    for node, tasks in by_node.items():
        is_own = own is not None and node == own.node
        if most_tasks is not None and len(rows) + len(tasks) > most_tasks + 1 and not is_own:
            left_out += len(tasks)
            continue
        for task in tasks:
            name = node if task is tasks[0] else ""
            address = task.address + ("  (this task)" if task == own else "")
            job = f"{task.job} {task.index}"
            rows.append((name, str(task.rank), str(task.local_rank), job, address))
    widths = [max(map(len, column)) for column in zip(*rows)]
    line = "{:{}}  {:>{}}  {:>{}}  {:{}}  {}"
    lines = [
        line.format(node, widths[0], rank, widths[1], local, widths[2], job, widths[3], address)
        for node, rank, local, job, address in rows
    ]
    if left_out:
        lines.append(f"… and {counted(left_out, 'more task')}: `slurm-resolver show` prints all")
    return lines
