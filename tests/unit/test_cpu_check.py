"""What `check` says of the CPUs of a node's tasks."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_resolver.preflight.cpu_check import (
    TaskCpus,
    _folded,
    _unfold,
    check_cpus,
    cpu_facts,
    find_problems,
)
from slurm_resolver.slurm.step import SlurmStep


def tasks(*own: str, **fields: Any) -> List[TaskCpus]:
    """Tasks of a node of 64 CPUs, by the CPUs that each may use."""
    every = {"machine": 64, **fields}
    return [TaskCpus(rank, "n1", _unfold(text), **every) for rank, text in enumerate(own)]


ALL = "0-63"
CASES: Dict[str, Any] = {
    "not bound": (tasks(ALL, ALL, ALL), None),
    "not bound, and more tasks than CPUs": (tasks(*["0-1"] * 4, machine=2, of_step=4), None),
    "each bound to its own": (tasks("0-7", "8-15", of_step=16, per_task=8), None),
    "bound together to what the step has": (tasks("0-15", "0-15", of_step=16), None),
    "one CPU each, as was asked for": (tasks("0", "1", of_step=2, per_task=1), None),
    "hyperthreads that the step does not count": (tasks("0,32", "1,33", of_step=2), None),
    "a step that has no more": (tasks("0-3", of_step=4, has_gpus=True), None),
    "what is no number": (tasks("0", threads={"TF_NUM_INTRAOP_THREADS": "auto"}), None),
    "fewer than asked for": (
        tasks("0", "1", per_task=8, of_step=16),
        "ranks 0-1 on n1 may use 1 CPU, but SLURM_CPUS_PER_TASK=8: srun --cpus-per-task=8, or",
    ),
    "fewer than the step has": (
        tasks("0", "1", of_step=64),
        "ranks 0-1 on n1 may use CPUs 0-1 of the 64 that the step has there: srun --cpus-per-task=",
    ),
    "all on one": (
        tasks("5", "5", "5", of_step=3),
        "ranks 0-2 on n1 may use CPU 5 of the 3 that the step has there: srun --cpus-per-task=1",
    ),
    "one CPU for a GPU": (
        tasks("7", has_gpus=True, of_step=1),
        "rank 0 on n1 may use 1 CPU of the node's 64, too few to feed a GPU",
    ),
    "bound to the same, beside others": (
        tasks("0-3", "0-3", "4-7", of_step=8),
        "ranks 0 and 1 on n1 are both bound to CPUs 0-3, and others of the step are free",
    ),
    "bound so that they overlap": (
        tasks("0-4", "4-7"),
        "ranks 0 and 1 on n1 are both bound to CPU 4",
    ),
    "more threads than CPUs": (
        tasks("0-7", threads={"TF_NUM_INTRAOP_THREADS": "64"}, of_step=8),
        "rank 0 on n1: TF_NUM_INTRAOP_THREADS=64, but the task may use 8 CPUs: unset it",
    ),
}


@pytest.mark.parametrize(("given_tasks", "told"), CASES.values(), ids=CASES)
def test_what_slows_tasks_down(given_tasks: List[TaskCpus], told: Optional[str]) -> None:
    found = find_problems(given_tasks)
    assert len(found) == (told is not None), found
    assert told is None or found[0].startswith(told)


def test_the_line() -> None:
    def note(cpus: str) -> Dict[str, Any]:
        unknown: Dict[str, Any] = {"cpus_per_task": None, "cpus_on_node": "x", "devices": None}
        return {"cpus": cpus, "machine_cpus": 8, "threads": {}, **unknown}

    alone = check_cpus({0: note("0-3"), 1: note("4-5")}, ["n1", "n1"])
    assert (alone.status, alone.detail) == ("ok", "each task may use 2 to 4 CPUs, alone")
    shared = check_cpus({0: note("0-7"), 1: note("0-7")}, ["n1", "n1"])
    assert shared.detail == "each task may use 8 CPUs, shared with others of its node"
    one = check_cpus({0: note("0"), 1: note("0")}, ["n1", "n2"])
    assert (one.status, one.detail) == ("ok", "each task may use 1 CPU, alone")


def test_what_a_task_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3, 0, 1})
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "2")
    step = SlurmStep.read({"SLURM_CPUS_PER_TASK": "2", "SLURM_CPUS_ON_NODE": "4"})
    assert cpu_facts(step) == {
        "cpus": "0-1,3",
        "machine_cpus": 64,
        "cpus_per_task": "2",
        "cpus_on_node": "4",
        "threads": {"TF_NUM_INTEROP_THREADS": "2"},
    }


@given(st.sets(st.integers(0, 300), min_size=1))
def test_any_cpus_are_read_as_they_were_written(cpus: Any) -> None:
    assert _unfold(_folded(sorted(cpus))) == sorted(cpus)
