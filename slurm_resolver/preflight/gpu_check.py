"""Whether each task's GPUs are its own, all of them are used, and NCCL can copy between them.

NCCL copies from one GPU of a node to another directly where a process may open both. It may do so
with GPUs that CUDA_VISIBLE_DEVICES hides ("CUDA 10.1 and later can use P2P with invisible devices",
``p2pCanConnect`` in NCCL's src/transport/p2p.cc), so that it costs nothing how a node's tasks
divide its GPUs among themselves. It may not where Slurm binds each task to its own *and* the site
confines it to these (cgroup.conf(5), ConstrainDevices): then all goes through the host's memory.
"""

from __future__ import annotations

import itertools
import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.task_gpus import is_slice, memory_is_chosen
from slurm_resolver.preflight.agreement import Note
from slurm_resolver.preflight.result import SKIPPED, WARNING, Result, result_of
from slurm_resolver.slurm.gpu_identity import find_own_numbers, shown_gpus
from slurm_resolver.slurm.gpu_variables import count_driver_gpus
from slurm_resolver.slurm.hostlist_compress import compress_hostlist
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.wording import counted

_GROWTH = SlurmStep.allow_growth.name
_BIND = re.compile(r"gpu:(?:verbose,)?(per_task|single|map_gpu|mask_gpu):([0-9A-Fa-fx,]+)")
_NUMBER = re.compile(r"0x[0-9A-Fa-f]{1,16}|[0-9]{1,5}")


class TaskGpus(NamedTuple):
    """What a task tells of its GPUs.

    Attributes:
        rank, local_rank, job: of the task.
        devices: those that it uses, by the driver's names where numbers may be its own.
        shown: of `slurm_resolver.slurm.gpu_identity.shown_gpus`.
        granted: SLURM_GPUS_ON_NODE, None where it is not set.
        bind: SLURMD_TRES_BIND.
        by_driver: how many the driver shows the task, None where it cannot be asked.
        growth: whether TensorFlow takes their memory bit by bit, or the user has it otherwise.
        unused: how many MIG slices it has that it cannot use.
    """

    rank: int
    local_rank: int
    job: str
    devices: Sequence[str]
    shown: str
    granted: Optional[int] = None
    bind: str = ""
    by_driver: Optional[int] = None
    growth: bool = False
    unused: int = 0


def gpu_facts(cluster: Cluster) -> Note:
    """Returns what this task tells of its GPUs."""
    gpus, step, decision = cluster.gpus, cluster.step, cluster.gpu_decision
    shown = shown_gpus(step)
    unused = 0
    if decision is not None and gpus:
        unused = max(0, decision.slices - len(gpus))
    if gpus and shown and not shown[0].isdigit() and len(shown.split(",")) == len(gpus):
        gpus = tuple(shown.split(","))  # the driver's names, where numbers may be this task's own
    return {
        "devices": gpus,
        "shown": shown,
        "granted": step.gpus_on_node,
        "bind": step.tres_bind or "",
        "by_driver": count_driver_gpus() if gpus else None,
        "growth": memory_is_chosen(step) or (decision is not None and bool(decision.memory)),
        "unused": unused,
    }


def check_gpus(notes: Mapping[int, Note], cluster: Cluster, others: Sequence[str] = ()) -> Result:
    """Returns what there is to say of the GPUs.

    Args:
        notes: what each task has told, by rank.
        cluster: the step's.
        others: further problems.
    """
    on_node: Dict[str, List[TaskGpus]] = {}
    for rank, note in notes.items():
        if note["devices"]:
            task = cluster.tasks[rank]
            fields = {name: note[name] for name in TaskGpus._fields if name in note}
            on_node.setdefault(task.node, []).append(
                TaskGpus(rank=rank, local_rank=task.local_rank, job=task.job, **fields)
            )
    if not on_node:
        return Result("gpus", SKIPPED, "no task has any, as far as the environment tells")
    asynchronous = any(task.job == "ps" for task in cluster.tasks)
    return result_of(
        "gpus",
        [*find_problems(on_node, asynchronous), *others],
        _describe(on_node),
        WARNING,
    )


def find_problems(
    on_node: Mapping[str, Sequence[TaskGpus]], asynchronous: bool = False
) -> List[str]:
    """Returns what is wrong with the GPUs that their users can change.

    Args:
        on_node: the tasks that use GPUs, by node.
        asynchronous: whether there are parameter servers: then the tasks do not use NCCL.
    """
    found = [text for node, tasks in on_node.items() for text in _shared(node, tasks, asynchronous)]
    hidden: Dict[Tuple[str, Optional[int]], List[str]] = {}
    if not asynchronous:
        for node, tasks in on_node.items():
            if _hidden_from_each_other(tasks):
                hidden.setdefault((tasks[0].bind, tasks[0].granted), []).append(node)
    for (bind, granted), nodes in hidden.items():
        found.append(
            f"tasks on {compress_hostlist(nodes)} may open no GPU but their own "
            f"({bind or 'the site confines them'}), so that NCCL copies between them through the "
            f"host's memory: ask for the GPUs by --gpus-per-node={granted or 'N'}, without "
            "--gpus-per-task and --gpu-bind, and each task takes its share"
        )
    for node, tasks in on_node.items():
        found += _missing(node, tasks)
        unused = sum(task.unused for task in tasks)
        if unused:
            found.append(
                f"{counted(unused, 'MIG slice')} on {node} {'is' if unused == 1 else 'are'} not "
                "used, as CUDA shows a process only one: start a task for each "
                f"(--ntasks-per-node={len(tasks) + unused})"
            )
    return found


def _shared(node: str, tasks: Sequence[TaskGpus], asynchronous: bool) -> List[str]:
    """Returns what is wrong with GPUs that several tasks of a node use."""
    if find_own_numbers([task.shown for task in tasks]) is not None:
        return []
    problems = []
    users = _users(tasks)
    for device, sharing in users.items():
        reasons, advice = [], []
        grow = f"export {_GROWTH}=true before srun"
        if sum(task.job != "evaluator" for task in sharing) > 1 and not asynchronous:
            reasons.append("NCCL takes no GPU twice")
            grow = f"or, without NCCL, {grow}"
            if (sharing[0].granted or 0) > len(users):
                advice.append("others are free, leave --gpu-bind and --ntasks-per-gpu out")
            else:
                advice.append(f"start a task for each GPU (--ntasks-per-node={len(users)})")
        if not all(task.growth for task in sharing):
            reasons.append("the first takes all of its memory")
            advice.append(grow)
        if len(sharing) > 1 and reasons:
            ranks = ", ".join(str(task.rank) for task in sharing)
            problems.append(
                f"GPU {device} of {node} is used by the ranks {ranks}, but "
                f"{' and '.join(reasons)}: {', '.join(advice)}"
            )
    return problems


def _missing(node: str, tasks: Sequence[TaskGpus]) -> List[str]:
    """Returns whether Slurm has granted more GPUs than the driver knows."""
    for task in tasks:
        shown = task.shown.partition(" of ")[0].split(",")
        if task.by_driver is not None and not is_slice(shown[0]) and len(shown) > task.by_driver:
            text = (
                f"the driver on {node} knows {task.by_driver} of the {len(shown)} GPUs that Slurm "
                f"shows rank {task.rank}: do without the node (sbatch --exclude={node}), and tell "
                "its administrators"
            )
            return [text]
    return []


def _users(tasks: Sequence[TaskGpus]) -> Dict[str, List[TaskGpus]]:
    users: Dict[str, List[TaskGpus]] = {}
    for task in tasks:
        for device in task.devices:
            users.setdefault(device, []).append(task)
    return users


def _hidden_from_each_other(tasks: Sequence[TaskGpus]) -> bool:
    """Whether two tasks of a node may open no GPU of each other, as far as that is certain.

    Slices are hidden from each other in any case.
    """
    tasks = [task for task in tasks if task.job != "evaluator"]
    if len(tasks) < 2 or any(is_slice(device) for task in tasks for device in task.devices):
        return False
    if not any(task.shown[:1].isdigit() or task.by_driver is None for task in tasks):
        granted = tasks[0].granted or 0
        confined = all(task.by_driver == len(task.devices) < granted for task in tasks)
        return confined and any(set(one.devices) != set(tasks[0].devices) for one in tasks)
    # Numbers that begin at 0 in each, though Slurm has bound them to different ones
    return find_own_numbers([task.shown for task in tasks]) is not None and _bound_apart(tasks)


def _bound_apart(tasks: Sequence[TaskGpus]) -> bool:
    """Whether Slurm has bound the tasks to different GPUs, as far as its option tells."""
    match = _BIND.search(tasks[0].bind)
    numbers = _NUMBER.findall(match[2]) if match else []
    values = [int(text, 16 if text[:2] == "0x" else 10) for text in numbers]
    if match is None or not values:
        return False
    local_ranks = [task.local_rank for task in tasks]
    if match[1] in ("per_task", "single"):
        number, granted = values[0], tasks[0].granted or 0
        several = match[1] == "single" and number > 1  # tasks for a GPU, not GPUs for a task
        return not several and (max(local_ranks) + 1) * number <= granted
    own = [values[local_rank % len(values)] for local_rank in local_ranks]
    if match[1] == "map_gpu":
        return len(set(own)) == len(own)
    return all(not one & other for one, other in itertools.combinations(own, 2))


def _describe(on_node: Mapping[str, Sequence[TaskGpus]]) -> str:
    number, shared, unsure = 0, 0, ""
    for node, tasks in on_node.items():
        if find_own_numbers([task.shown for task in tasks]) is not None:
            number += sum(len(task.devices) for task in tasks)
            if not _bound_apart(tasks):
                unsure = unsure or (
                    f"; on {node} each task's are numbered from 0: whether tasks share them only "
                    "the driver tells (pip install 'slurm_resolver[nvidia]')"
                )
            continue
        users = _users(tasks)
        number += len(users)
        shared += sum(len(sharing) > 1 for sharing in users.values())
    if unsure:
        return f"{number}{unsure}"
    return f"{number}, {f'{shared} of them shared by tasks' if shared else 'each used by one task'}"
