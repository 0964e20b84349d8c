"""What the driver tells of the step's GPUs that slows a training down, or ends it.

Processes of others on them, memory that is gone, errors of the memory, and models and drivers that
are not those of the rest of the step. All of it is told of GPUs that the step's tasks use.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.rendezvous.gathering import Note
from slurm_resolver.slurm.gpu_state import DriverState, GpuState, note_of, read_driver_state
from slurm_resolver.slurm.hostlist_compress import compress_hostlist
from slurm_resolver.wording import ranges_of

# Of its memory a GPU keeps a few per cent for itself: nobody needs to use what is less than this.
_FREE_PART = 0.9
_MAX_NAMED = 3  # processes


class TaskDriver(NamedTuple):
    """What the driver tells a task: its rank, its job, where it runs, and the answer."""

    rank: int
    job: str
    node: str
    state: DriverState


def gpu_state_facts(cluster: Cluster) -> Note:
    """Returns what the driver tells of this task's GPUs; nothing where it cannot be asked."""
    if not cluster.gpus:
        return {}
    step = cluster.step
    shared = step.shards_on_node is not None
    return {"driver": note_of(read_driver_state(cluster.gpus, step.job_id, shared))}


def find_gpu_faults(notes: Mapping[int, Note], cluster: Cluster) -> List[str]:
    """Returns what is wrong with GPUs of the step, as far as their driver tells."""
    tasks = []
    for rank, note in notes.items():
        told = note.get("driver")
        if told:
            state = DriverState(told["version"], [GpuState(*gpu) for gpu in told["gpus"]])
            task = cluster.tasks[rank]
            tasks.append(TaskDriver(rank, task.job, task.node, state))
    return find_faults(tasks, any(task.job == "ps" for task in cluster.tasks))


def find_faults(tasks: Sequence[TaskDriver], asynchronous: bool = False) -> List[str]:
    """Returns what is wrong.

    Args:
        tasks: those whose driver could be asked.
        asynchronous: whether there are parameter servers: then no task waits for a slower one.
    """
    found: List[str] = []
    seen = set()
    for task in tasks:
        for gpu in task.state.gpus:
            if (task.node, gpu.uuid) not in seen:  # tasks may share it
                seen.add((task.node, gpu.uuid))
                found += _find_faults_of(gpu, task)
    if not asynchronous:
        # An evaluator takes no part in the steps of the others.
        compared = [task for task in tasks if task.job != "evaluator" and task.state.gpus]
        found += _compare(
            [(_models(task.state.gpus), task) for task in compared],
            lambda names, tasks: f"{names} in {_ranks(tasks)} on {_nodes(tasks)}",
            "a step of the training is as slow as the slowest: ask for one type "
            "(--gpus-per-node=TYPE:N), or for like nodes (--constraint)",
        )
    found += _compare(
        [(task.state.version, task) for task in tasks if task.state.version],
        lambda version, tasks: f"{_nodes(tasks)} {_have(tasks)} the driver {version}",
        "do without those that differ (sbatch --exclude), and tell their administrators",
    )
    return found


def _find_faults_of(gpu: GpuState, task: TaskDriver) -> List[str]:
    found = []
    name = f"GPU {gpu.device} of {task.node} (rank {task.rank})"
    elsewhere = f"do without the node (sbatch --exclude={task.node})"
    memory = f"{_gib(gpu.free)} of its {_gib(gpu.total)} GiB are free"
    little = gpu.free < gpu.total * _FREE_PART
    if gpu.users:
        users = [f"{pid} ({command or 'not seen from here'})" for pid, command in gpu.users]
        named = ", ".join([*users[:_MAX_NAMED], "…"] if len(users) > _MAX_NAMED else users)
        process = "process" if len(gpu.users) == 1 else "processes"
        found.append(
            f"{name} is in use by the {process} {named}, not of this job"
            f"{f', and {memory}' if little else ''}: end what is yours, or {elsewhere}"
        )
    elif little:
        found.append(
            f"{name}: only {memory}, and no other job's process is seen on it: end what this job "
            f"has left there, or {elsewhere}"
        )
    if gpu.errors:
        found.append(
            f"{name} has {' and '.join(gpu.errors)}: {elsewhere}, and tell its administrators to "
            "reset the GPU"
        )
    return found


def _compare(
    values: Iterable[Tuple[str, TaskDriver]],
    tell: Callable[[str, Sequence[TaskDriver]], str],
    advice: str,
) -> List[str]:
    """Returns what differs between tasks: those that are not as most are, or all where none are."""
    having: Dict[str, List[TaskDriver]] = {}
    for value, task in values:
        having.setdefault(value, []).append(task)
    if len(having) < 2:
        return []
    fewest_first = sorted(having.items(), key=lambda one: len(one[1]))
    usual, most = fewest_first[-1]
    if 2 * len(most) > sum(map(len, having.values())):
        others = "; ".join(tell(value, tasks) for value, tasks in fewest_first[:-1])
        return [f"{others}, the others {usual}: {advice}"]
    return [f"{'; '.join(tell(value, tasks) for value, tasks in fewest_first)}: {advice}"]


def _models(gpus: Sequence[GpuState]) -> str:
    return " and ".join(sorted({gpu.model for gpu in gpus}))


def _ranks(tasks: Sequence[TaskDriver]) -> str:
    ranks = ",".join(ranges_of(task.rank for task in tasks))
    return f"rank {ranks}" if len(tasks) == 1 else f"ranks {ranks}"


def _nodes(tasks: Sequence[TaskDriver]) -> str:
    return compress_hostlist(list(dict.fromkeys(task.node for task in tasks)))


def _have(tasks: Sequence[Any]) -> str:
    return "has" if len({task.node for task in tasks}) == 1 else "have"


def _gib(number: int) -> str:
    return f"{number / 2**30:.{0 if number >= 10 * 2**30 else 1}f}"
