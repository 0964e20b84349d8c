"""The tasks of a step, as everybody sees them."""

from __future__ import annotations

from collections import Counter
from typing import Dict, Iterable, List, NamedTuple, Sequence, Tuple


class Task(NamedTuple):
    """One task: its rank, its node and local rank there, its job and index, and its address."""

    rank: int
    node: str
    local_rank: int
    job: str
    index: int  # type: ignore[assignment]  # TensorFlow's word; hides tuple.index()
    address: str


def addresses_by_job(tasks: Sequence[Task]) -> Dict[str, List[str]]:
    """Returns the addresses of each job by index, in alphabetical order of the job names."""
    jobs: Dict[str, List[str]] = {}
    for task in sorted(tasks, key=lambda task: (task.job, task.index)):
        jobs.setdefault(task.job, []).append(task.address)
    return jobs


def tasks_by_node(tasks: Iterable[Task]) -> Dict[str, List[Task]]:
    """Returns the tasks of each node, the nodes in the order of their first task."""
    by_node: Dict[str, List[Task]] = {}
    for task in tasks:
        by_node.setdefault(task.node, []).append(task)
    return by_node


def count_jobs(tasks: Iterable[Task]) -> List[Tuple[str, int]]:
    """Returns each job and the number of its tasks, in alphabetical order."""
    return sorted(Counter(task.job for task in tasks).items())
