"""The sequence of a step's tasks: as a tuple of them, at the cost of none."""

from __future__ import annotations

import copy
import gc
import pickle
import tracemalloc
from typing import List

import pytest
import task_variables

import slurm_resolver as sr
from slurm_resolver.cluster.tasks import Tasks

TASK = {**task_variables.TASK, "SLURM_DISTRIBUTION": "cyclic"}
LARGE = {
    **task_variables.TASK,
    "SLURM_STEP_NUM_TASKS": "100000",
    "SLURM_STEP_NODELIST": "n[1-12500]",
    "SLURM_STEP_TASKS_PER_NODE": "8(x12500)",
    "SLURM_STEP_RESV_PORTS": "23001-23009",
}


def test_it_is_as_a_tuple() -> None:
    tasks = sr.resolve({"ps": 1, "worker": -1}, environ=TASK).tasks
    plain = tuple(tasks)
    assert isinstance(tasks, Tasks)
    assert [(task.rank, task.node, task.local_rank) for task in plain] == [
        (0, "n9", 0),
        (1, "n10", 0),
        (2, "n9", 1),
        (3, "n10", 1),
    ]
    assert all(isinstance(task, sr.Task) for task in plain)
    assert [tasks[rank] for rank in range(len(tasks))] == list(plain)
    assert (tasks[-1], tasks[1:3], tasks[::-2]) == (plain[-1], plain[1:3], plain[::-2])
    assert list(reversed(tasks)) == list(reversed(plain))
    assert (tasks == plain, plain == tasks, tasks != plain) == (True, True, False)
    assert tasks != plain[:3]
    assert tasks != (*plain[:3], plain[0])
    assert tasks != list(plain)  # as a tuple is not
    assert hash(tasks) == hash(plain)
    assert plain[2] in tasks
    assert tasks.index(plain[2]) == 2
    assert repr(tasks) == "<4 tasks on 2 nodes>"
    with pytest.raises(IndexError):
        tasks[4]
    for again in (copy.deepcopy(tasks), pickle.loads(pickle.dumps(tasks))):
        assert again == tasks


def test_a_cluster_of_plain_tasks_tells_the_same() -> None:
    """As one makes it with `_replace`, in a test or to rename hosts."""
    cluster = sr.resolve({"chief": 1, "ps": 1, "worker": -1}, environ=TASK)
    plain = cluster._replace(tasks=tuple(cluster.tasks))
    assert plain == cluster
    assert plain.jobs() == cluster.jobs()
    assert list(plain.jobs()) == list(cluster.jobs()) == ["chief", "ps", "worker"]
    assert plain.to_dict() == cluster.to_dict()


def alive() -> List[sr.Task]:
    return [thing for thing in gc.get_objects() if type(thing) is sr.Task]


def test_a_step_of_100000_tasks_makes_one_of_them() -> None:
    before = len(alive())
    tracemalloc.start()
    cluster = sr.resolve({"ps": 1000, "worker": -1}, environ=LARGE)
    assert len(alive()) == before + 1
    assert cluster.task == cluster.tasks[1]
    assert [len(addresses) for addresses in cluster.jobs().values()] == [1000, 99_000]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(alive()) == before + 1
    assert peak < 100_000 * 200  # bytes a task


def test_its_jobs_are_right_task_by_task() -> None:
    cluster = sr.resolve({"chief": 1, "ps": 300, "worker": -1}, environ=LARGE)
    jobs = cluster.jobs()
    assert len(cluster.tasks) == 100_000
    assert all(jobs[task.job][task.index] == task.address for task in cluster.tasks)
    assert len({address for addresses in jobs.values() for address in addresses}) == 100_000
