"""A process trains alone, is a task, or raises an error if neither is certain."""

from __future__ import annotations

import re
import socket
from typing import Any
from unittest import mock

import pytest
from captured import Patch
from kinds import Counts, Fields, Texts
from task_variables import ALONE
from task_variables import TASK as VARIABLES

from slurm_resolver.cluster import alone
from slurm_resolver.cluster.alone import advise_on_lonely_step, is_this_machine, why_alone
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.resolve import resolve
from slurm_resolver.errors import EnvironmentValueError, NotInStepError
from slurm_resolver.slurm.ancestors import Ancestors
from slurm_resolver.slurm.step_variables import SlurmStep

TASK: Fields = {
    "rank": 0,
    "job_id": "7",
    "step_id": "0",
    "nodes": ("n9", "n10"),
    "node_name": "n9",
    "task_pid": "100",
}
BATCH: Fields = {
    "rank": 0,
    "job_id": "7",
    "job_num_nodes": "1",
    "task_pid": "100",
}
IN_STEP = Ancestors(
    complete=True,
    job_id="7",
    step_id="0",
)


@pytest.mark.parametrize(
    ("values", "jobs", "error", "says"),
    [
        ({}, None, None, "outside Slurm"),
        ({"ancestors": Ancestors(hidden=True)}, None, None, "/proc hides what started it"),
        ({"job_id": "7"}, None, None, "no variable shows that job 7 has more than one task"),
        ({**TASK, "resolver_switch": "off"}, {"worker": 2}, None, "SLURM_RESOLVER=off"),
        # None: it is a task
        ({**TASK, "ancestors": IN_STEP}, None, None, None),
        (
            {
                **TASK,
                "ancestors": IN_STEP._replace(job_id="8"),
                "het_size": 2,
            },
            None,
            None,
            None,
        ),
        # a task that unset one of its ids
        ({**TASK, "ancestors": IN_STEP, "job_id": None}, None, None, None),
        ({**TASK, "ancestors": IN_STEP._replace(job_id=None)}, None, None, None),
        # another task's variables
        (
            {
                **TASK,
                "node_name": "n10",
                "task_pid": None,
            },
            None,
            None,
            None,
        ),
        ({}, {"worker": 2}, NotInStepError, "slurm-resolver run -n TASKS"),
        (
            {"ancestors": IN_STEP},
            None,
            NotInStepError,
            "a task of step 7.0, but its Slurm variables were removed, so it cannot tell",
        ),
        (
            {"remains": ("SLURM_A",)},
            None,
            NotInStepError,
            "has only SLURM_A, and /proc hides what started it, so it cannot tell",
        ),
        ({**BATCH, "job_num_nodes": "2"}, None, NotInStepError, "srun python"),
        (
            {**TASK, "ancestors": Ancestors("prted")},
            None,
            NotInStepError,
            "by prted, not by srun",
        ),
        (
            {**TASK, "ancestors": IN_STEP._replace(step_id="3")},
            None,
            EnvironmentValueError,
            "SLURM_JOB_ID=7 and SLURM_STEP_ID=0, but Slurm started this process in step 7.3: ",
        ),
        (
            {**TASK, "node_name": "n10"},
            None,
            EnvironmentValueError,
            "SLURMD_NODENAME=n10, but this machine is called ",
        ),
    ],
)
def test_alone_or_a_task_or_neither(
    values: Fields,
    jobs: Counts | None,
    error: Any,
    says: Any,
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(alone, "is_this_machine", {"n9": True, "n10": False}.get)
    step = SlurmStep(**values)
    options = ClusterOptions(jobs)
    if error is not None:
        with pytest.raises(error, match=re.escape(says)):
            why_alone(step, options)
        return
    told = why_alone(step, options)
    assert told is None if says is None else says in str(told)


def test_the_variables_of_another_task_are_only_read(monkeypatch: Patch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", None)
    copied = {
        **VARIABLES,
        "SLURM_TASK_PID": "100",
        "SLURMD_NODENAME": "n9",
    }
    assert resolve(environ=copied).num_tasks == 4


UNKNOWN = socket.gaierror("Name or service not known")
ANOTHERS = OSError("Cannot assign requested address")


@pytest.mark.parametrize(
    ("node", "error", "expected"),
    [
        ("N9.example.com", ANOTHERS, True),
        ("x1", None, True),
        ("x1", ANOTHERS, False),
        ("x1", UNKNOWN, False),  # of the step's nodes, this one is n9
        ("x2", UNKNOWN, True),
    ],
)
def test_a_machine_is_known_by_its_name_and_its_addresses(
    monkeypatch: Patch, node: str, error: Any, expected: bool
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "n9")
    monkeypatch.setattr(socket.socket, "bind", mock.Mock(side_effect=error))
    assert is_this_machine(node, ["n9"] if node == "x1" else []) is expected


# The variables of the job, and the number of tasks that fit into it ("" if there is no advice).
JOBS = [
    ({}, ""),
    ({"SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS_PER_NODE": "1"}, ""),
    ({"SLURM_JOB_NUM_NODES": "3"}, "3"),
    ({"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "4"}, "8"),
    ({"SLURM_JOB_NUM_NODES": "3", "SLURM_STEP_NUM_TASKS": "3"}, ""),
    ({"SLURM_JOB_NUM_NODES": "3", "SLURM_STEP_ID": "-5"}, ""),  # a batch script
    ({"SLURM_JOB_NUM_NODES": "3", "SLURM_RESOLVER_JOB": "42"}, ""),  # slurm-resolver run
]


@pytest.mark.parametrize(("job", "tasks"), JOBS)
def test_a_step_of_one_task(job: Texts, tasks: str) -> None:
    advice = advise_on_lonely_step(SlurmStep.read({**ALONE, **job}))
    assert bool(advice) == bool(tasks)
    assert not tasks or f"room for {tasks}. " in advice
    assert not tasks or advice.endswith(f"srun -n {tasks} …")
