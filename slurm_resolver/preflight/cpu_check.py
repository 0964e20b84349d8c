"""Which CPUs the tasks of a step may use, and whether a node's tasks get in each other's way.

TensorFlow starts as many threads as the process may use CPUs (sched_getaffinity). A task that is
bound to one CPU of many, or to those of another, trains slowly, and nothing says so.
"""

from __future__ import annotations

import os
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.preflight.agreement import Note
from slurm_resolver.preflight.result import SKIPPED, WARNING, Result, result_of
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.wording import counted, ranges_of

_THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
# srun of 22.05 to 23.02 leaves the job's --cpus-per-task aside.
_MORE = "srun --cpus-per-task={}, or export SRUN_CPUS_PER_TASK before srun"


class TaskCpus(NamedTuple):
    """What a task may use.

    Attributes:
        rank: of the task.
        node: where it runs.
        own: the numbers of the CPUs that it may use.
        machine: how many the node has.
        per_task: how many were asked for each task; None where that is not known.
        of_step: how many the step has on the node; None where that is not known.
        threads: the variables that tell TensorFlow how many threads to start, by name.
        has_gpus: whether the task uses GPUs.
    """

    rank: int
    node: str
    own: Sequence[int]
    machine: int
    per_task: Optional[int] = None
    of_step: Optional[int] = None
    threads: Mapping[str, str] = {}
    has_gpus: bool = False

    @property
    def is_bound(self) -> bool:
        """Whether it may not use all of the node's."""
        return len(self.own) < self.machine


def cpu_facts(step: SlurmStep) -> Note:
    """Returns what this task tells of its CPUs."""
    own = sorted(os.sched_getaffinity(0))
    threads = {name: os.environ[name] for name in _THREADS if name in os.environ}
    return {
        "cpus": _folded(own),
        "machine_cpus": max(os.cpu_count() or 1, len(own)),
        "cpus_per_task": step.cpus_per_task,
        "cpus_on_node": step.cpus_on_node,
        "threads": threads,
    }


def check_cpus(notes: Dict[int, Note], nodes: Sequence[str]) -> Result:
    """Returns what there is to say of the CPUs.

    Args:
        notes: what each task has told, by rank.
        nodes: the node of each rank.
    """
    on_node: Dict[str, List[TaskCpus]] = {}
    for rank, note in notes.items():
        if not note.get("cpus"):
            return Result("cpus", SKIPPED, "not every task can tell which it may use")
        task = TaskCpus(
            rank,
            nodes[rank],
            _unfold(note["cpus"]),
            note["machine_cpus"],
            _number(note["cpus_per_task"]),
            _number(note["cpus_on_node"]),
            note["threads"],
            bool(note.get("devices")),
        )
        on_node.setdefault(task.node, []).append(task)
    problems = [text for tasks in on_node.values() for text in find_problems(tasks)]
    return result_of("cpus", problems, _describe(list(on_node.values())), WARNING)


def find_problems(tasks: Sequence[TaskCpus]) -> List[str]:
    """Returns what slows the tasks of a node down that its users can change."""
    usable = _union(tasks)
    first = tasks[0]
    node, ranks = first.node, _ranks([task.rank for task in tasks])
    of_step = max((task.of_step or 0 for task in tasks), default=0)
    found: List[str] = []
    short = [task for task in tasks if task.is_bound and len(task.own) < (task.per_task or 0)]
    starving = [t for t in tasks if t.has_gpus and len(t.own) == 1 and t.is_bound]
    if short:
        task = short[0]
        more = _MORE.format(task.per_task or 1)
        found.append(
            f"{_ranks([t.rank for t in short])} on {node} may use {_cpus(task)}, but "
            f"SLURM_CPUS_PER_TASK={task.per_task}: {more}"
        )
    elif len(usable) < min(first.machine, of_step) and len(usable) <= max(
        of_step // 2, len(tasks) - 1
    ):
        more = _MORE.format(max(1, of_step // len(tasks)))
        found.append(
            f"{ranks} on {node} may use {_named(usable)} of the {of_step} that the step has "
            f"there: {more}"
        )
    elif starving:
        found.append(
            f"{_ranks([t.rank for t in starving])} on {node} may use {_cpus(starving[0])} of the "
            f"node's {starving[0].machine}, too few to feed a GPU: ask for more, "
            "sbatch --cpus-per-task=N"
        )
    overlap = _first_overlap(tasks, len(usable))
    if overlap is not None and not found:
        one, other, shared = overlap
        found.append(
            f"ranks {one.rank} and {other.rank} on {node} are both bound to {_named(shared)}, and "
            "others of the step are free: leave --cpu-bind out, or bind each to its own"
        )
    for name in _THREADS:
        for task in tasks:
            number = _number(task.threads.get(name))
            if number is not None and number > len(task.own):
                found.append(
                    f"rank {task.rank} on {node}: {name}={number}, but the task may use "
                    f"{_cpus(task)}: unset it, and TensorFlow takes as many"
                )
                break
    return found


def _first_overlap(
    tasks: Sequence[TaskCpus], usable: int
) -> Optional[Tuple[TaskCpus, TaskCpus, Sequence[int]]]:
    """Returns two tasks that share CPUs while the step has others, and those that they share."""
    user: Dict[int, TaskCpus] = {}
    for task in tasks:
        if len(task.own) == usable:
            continue  # all of the node share all: they are not bound
        for cpu in task.own:
            if cpu in user:
                other = user[cpu]
                return other, task, sorted(set(other.own) & set(task.own))
            user[cpu] = task
    return None


def _describe(nodes: Sequence[Sequence[TaskCpus]]) -> str:
    counts = sorted({len(task.own) for tasks in nodes for task in tasks})
    shared = any(
        len(tasks) > 1 and sum(len(task.own) for task in tasks) > len(_union(tasks))
        for tasks in nodes
    )
    number = counted(counts[0], "CPU")
    if len(counts) > 1:
        number = f"{counts[0]} to {counted(counts[-1], 'CPU')}"
    return f"each task may use {number}, {'shared with others of its node' if shared else 'alone'}"


def _union(tasks: Sequence[TaskCpus]) -> Sequence[int]:
    return sorted(set().union(*(task.own for task in tasks)))


def _cpus(task: TaskCpus) -> str:
    return counted(len(task.own), "CPU")


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_folded(ranks)}"


def _named(cpus: Sequence[int]) -> str:
    return f"CPU{'s'[: len(cpus) > 1]} {_folded(cpus)}"


def _number(text: object) -> Optional[int]:
    """Returns the number that a variable holds; None for anything else."""
    return int(text) if isinstance(text, str) and text.isdecimal() and len(text) < 8 else None


def _folded(numbers: Sequence[int]) -> str:
    """Returns the numbers as Slurm writes them: ``0-3,8``."""
    return ",".join(ranges_of(numbers))


def _unfold(text: str) -> Sequence[int]:
    numbers: List[int] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
