"""A cluster as plain text: what `print` and ``slurm-resolver show`` print, and the log's line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Iterable, Iterator, List, Optional, Tuple

from slurm_resolver.cluster.gpus import JOB_WITHOUT_GPUS
from slurm_resolver.cluster.task_gpus import TaskGpus
from slurm_resolver.cluster.tasks import Task
from slurm_resolver.wording import counted

if TYPE_CHECKING:
    from slurm_resolver.cluster.cluster import Cluster

NO_CLUSTER = "no cluster: this process trains alone"
MOST_TASKS = 100  # that `print` shows

_Row = Tuple[str, str, str, str, str]
_HEADINGS: _Row = ("node", "rank", "local", "task", "address")
_RIGHT_ALIGNED = ("rank", "local")


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
    return "\n".join(_lines(cluster, most_tasks))


def title(cluster: Cluster) -> str:
    """Returns which step it is."""
    if cluster.job_id is None and cluster.task is None:
        return "planned step"
    return f"job step {cluster.job_id or '?'}.{cluster.step_id or '?'}"


def describe_size(cluster: Cluster, nodes: int) -> str:
    """Returns how many tasks there are on how many nodes, and how they were distributed."""
    tasks = counted(len(cluster.tasks), "task")
    return f"{tasks} on {counted(nodes, 'node')}, {cluster.distribution} distribution"


def device_list(gpus: TaskGpus) -> str:
    """Returns the devices as CUDA_VISIBLE_DEVICES names them, "none" or "unknown"."""
    if gpus.devices is None and gpus.source != JOB_WITHOUT_GPUS:
        return "unknown"
    return ",".join(gpus.devices or ()) or "none"


def tasks_by_node(tasks: Iterable[Task]) -> Dict[str, List[Task]]:
    """Returns the tasks of each node, the nodes in the order of their first task."""
    by_node: Dict[str, List[Task]] = {}
    for task in tasks:
        by_node.setdefault(task.node, []).append(task)
    return by_node


def count_jobs(tasks: Iterable[Task]) -> List[Tuple[str, int]]:
    """Returns each job and the number of its tasks, in alphabetical order."""
    counts: Dict[str, int] = {}
    for task in tasks:
        counts[task.job] = counts.get(task.job, 0) + 1
    return sorted(counts.items())


def _lines(cluster: Cluster, most_tasks: Optional[int]) -> Iterator[str]:
    by_node = tasks_by_node(cluster.tasks)
    yield (
        f"{title(cluster)}: {describe_size(cluster, len(by_node))} "
        f"(from {cluster.layout_source}), ports from {cluster.ports_source}"
    )
    yield f"jobs: {', '.join(f'{job} {number}' for job, number in count_jobs(cluster.tasks))}"
    yield from _table(cluster, by_node, most_tasks)
    if cluster.task is None:
        return
    yield f"GPUs of the tasks on {cluster.task.node}:"
    for rank, gpus in sorted(cluster.gpus_on_node().items()):
        mark = "  (this task)" if rank == cluster.task.rank else ""
        yield f"  rank {rank}: {device_list(gpus)} ({gpus.source}){mark}"


def _table(
    cluster: Cluster, by_node: Dict[str, List[Task]], most_tasks: Optional[int]
) -> Iterator[str]:
    table = [_HEADINGS]
    left_out = 0
    for node, tasks in by_node.items():
        own = cluster.task is not None and node == cluster.task.node
        if most_tasks is not None and len(table) + len(tasks) > most_tasks + 1 and not own:
            left_out += len(tasks)
            continue
        for task in tasks:
            mark = "  (this task)" if task == cluster.task else ""
            name = node if task is tasks[0] else ""
            job = f"{task.job} {task.index}"
            table.append((name, str(task.rank), str(task.local_rank), job, task.address + mark))
    widths = [max(map(len, column)) for column in zip(*table)]
    for row in table:
        cells = [
            cell.rjust(width) if heading in _RIGHT_ALIGNED else cell.ljust(width)
            for cell, heading, width in zip(row, _HEADINGS, widths)
        ]
        yield "  ".join(cells).rstrip()
    if left_out:
        yield f"… and {counted(left_out, 'more task')}: `slurm-resolver show` prints all"
