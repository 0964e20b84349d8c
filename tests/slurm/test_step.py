"""A task's variables become typed values, or an error that names the variable and the value."""

from __future__ import annotations

from typing import Any

import pytest
from kinds import Texts

from slurm_resolver.errors import EnvironmentValueError, UnreadableValueError
from slurm_resolver.slurm.step_variables import VARIABLES, SlurmStep
from slurm_resolver.timeouts import Timeouts

TASK = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURMD_NODENAME": "n10",
    "SLURM_GTIDS": "2,3",
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "n[9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_RESV_PORTS": "23001-23003,23007",
    "SLURM_DISTRIBUTION": "cyclic:fcyclic",
}


@pytest.mark.parametrize(
    ("text", "distribution"),
    [
        ("block", "block"),
        ("block:cyclic", "block"),
        ("block,pack", "block"),
        ("pack", "block"),
        ("*:cyclic", "block"),
        ("cyclic", "cyclic"),
        ("plane=4", "plane"),
        ("arbitrary", "arbitrary"),
        ("", None),
        ("(null)", None),
    ],
)
def test_only_the_first_field_of_a_distribution_places_tasks(text: str, distribution: Any) -> None:
    assert SlurmStep.read({"SLURM_DISTRIBUTION": text}).distribution == distribution


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("SLURM_RESOLVER", "OFF", "off"),
        ("SLURM_RESOLVER_REPORT", "On", "on"),
        ("SLURM_STEP_RESV_PORTS", "23002,23001-23002", (23002, 23001)),
    ],
)
def test_the_same_value_may_be_written_differently(name: str, value: str, read: Any) -> None:
    step = SlurmStep.read({name: value})
    assert getattr(step, VARIABLES[name].field) == read


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("SLURM_PROCID", "٣", "a whole number from 0 upwards"),
        ("SLURM_STEP_NUM_TASKS", "0", "a whole number from 1"),
        ("SLURM_STEP_NODELIST", "n[1-", "not closed"),
        ("SLURM_STEP_NODELIST", "a[0-65535]b[0-65535]", "more than 16,777,216 hosts"),
        ("SLURM_STEP_TASKS_PER_NODE", "-2", "counts such as"),
        ("SLURM_STEP_RESV_PORTS", "65530-65536", "ports such as"),
        ("SLURM_STEP_RESV_PORTS", "23001],[23002", "ports such as"),
        ("SLURM_DISTRIBUTION", "zigzag", "block, cyclic, plane or arbitrary"),
        ("SLURM_HET_SIZE", "1000000", "a whole number from 0 to 128"),
        ("SLURM_RESOLVER", "no", "on or off"),
        ("SLURM_RESOLVER_NETWORK_GRACE", "30s", "a whole number from 1 to 86400"),
    ],
)
def test_a_senseless_value_is_named_with_what_was_expected(
    name: str, value: str, expected: str
) -> None:
    with pytest.raises(UnreadableValueError) as caught:
        SlurmStep.read({**TASK, name: value})
    assert isinstance(caught.value, ValueError)
    message = str(caught.value)
    assert message.startswith(f"{name}=")
    assert expected in message
    assert "start again with srun" in message


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_PROCID",
        "SLURM_STEP_NODELIST",
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_STEP_NUM_TASKS",
    ],
)
def test_a_missing_variable_is_an_error_where_it_is_needed(name: str) -> None:
    step = SlurmStep.read({key: value for key, value in TASK.items() if key != name})
    with pytest.raises(EnvironmentValueError, match=f"{name} is not set.*srun"):
        step.require(VARIABLES[name])


def test_a_step_is_a_value() -> None:
    step = SlurmStep.read(TASK)
    assert step == SlurmStep.read(TASK)
    assert step.replace(rank=None) != step


@pytest.mark.parametrize(
    ("environ", "is_alone"),
    [
        ({}, True),
        ({"SLURM_NTASKS": "2", "SLURM_JOB_NUM_NODES": "1"}, False),
        ({"SLURM_JOB_NUM_NODES": "2"}, False),
        ({"SLURM_NTASKS_PER_NODE": "4", "SLURM_JOB_NUM_NODES": "1"}, False),
    ],
)
def test_an_allocation_for_one_task(environ: Texts, is_alone: bool) -> None:
    assert SlurmStep.read({"SLURM_JOB_ID": "7", **environ}).is_for_one_task is is_alone


@pytest.mark.parametrize(
    ("environ", "where"),
    [
        ({}, "none"),
        (TASK, "step"),
        ({"SLURM_PROCID": "0"}, "step"),
        ({"SLURM_JOB_ID": "7"}, "allocation"),
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}, "allocation"),  # a batch script
        ({**TASK, "SLURM_STEP_ID": "-5"}, "allocation"),  # a batch script on 26.05
        ({**TASK, "SLURM_STEP_ID": "4294967290"}, "allocation"),  # salloc's interactive step
    ],
)
def test_where_tells_a_step_from_an_allocation_from_no_slurm(environ: Texts, where: str) -> None:
    assert SlurmStep.read(environ).where == where


def test_how_long_the_tasks_wait_for_each_other_at_the_start() -> None:
    assert SlurmStep.read(TASK).start_seconds == Timeouts.start
    assert SlurmStep.read({**TASK, "SLURM_RESOLVER_START_TIMEOUT": "9"}).start_seconds == 9
