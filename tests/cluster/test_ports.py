"""The port on which each task listens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_resolver.cluster.ports import choose_ports
from slurm_resolver.errors import AddressError
from slurm_resolver.slurm.step_variables import Component, SlurmStep


def step(job_id: str | None = "42", step_id: str | None = "0", **more: Any) -> SlurmStep:
    return SlurmStep(
        job_id=job_id,
        step_id=step_id,
        **more,
    )


@pytest.mark.parametrize(
    ("step", "tasks", "port_base", "ports", "source"),
    [
        (step(reserved_ports=(23001, 23002)), 2, 2222, [2222, 2223], "port_base",),
        (step(), 1, 65535, [65535], "port_base",),
        (step(reserved_ports=(23001, 23002, 23010)), 2, None, [23001, 23002],
         "SLURM_STEP_RESV_PORTS"),
        (step(reserved_ports=(23001, 23002), is_component=True), 1, None, [12624],
         "SLURM_JOB_ID and SLURM_STEP_ID"),
        # the components share node n2
        (step(reserved_ports=(23001, 23002), nodes=("n1", "n2"), components=(
            Component(0, ("n1", "n2"), None, None), Component(1, ("n2",), None, None))),
         1, None, [12624], "SLURM_JOB_ID and SLURM_STEP_ID"),
        (step(None, None), 3, None, [8888, 8889, 8890], "default",),
    ],
)  # fmt: skip
def test_the_first_source_that_there_is(
    step: SlurmStep, tasks: int, port_base: int | None, ports: Any, source: str
) -> None:
    chosen = choose_ports(step, tasks, port_base)
    assert (list(chosen.by_local_rank), chosen.source) == (ports, source)


def test_the_meeting_has_a_port_of_its_own() -> None:
    assert choose_ports(step(), 2, 2222).service_port == 2224
    assert choose_ports(step(), 2, 65534).service_port == 65533
    assert choose_ports(step(reserved_ports=(23001, 23002, 23010)), 2).service_port == 23010


def test_reserved_ports_that_do_not_suffice_are_left_alone_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    few = (23001, 23002)
    assert choose_ports(step(reserved_ports=few), 3).source == "SLURM_JOB_ID and SLURM_STEP_ID"
    assert "RESV_PORTS has fewer ports (2) than a node has tasks (up to 3)" in caplog.text
    assert "--resv-ports=3" in caplog.text
    choose_ports(step(reserved_ports=few), 3)  # such as for the exchange of the layout
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "port_base",
    [
        0,
        -1,
        65536,
        65535,
        10**9,
        "8888",
        88.0,
        True,
    ],
)
def test_a_port_base_that_leaves_a_task_without_a_port(port_base: Any) -> None:
    with pytest.raises(AddressError, match=f"port_base={port_base!r}"):
        choose_ports(step(), 2, port_base)


IDS = st.one_of(
    st.integers(0, 2**32).map(str),
    st.sampled_from(
        [
            "",
            "batch",
            "é",
            "9" * 40,
        ]
    ),
)


@given(IDS, IDS, st.integers(1, 16_384))
def test_derived_ports_are_stable_distinct_and_below_the_ephemeral_range(
    job_id: str, step_id: str, tasks: int
) -> None:
    chosen = choose_ports(step(job_id, step_id), tasks)
    assert chosen.source == "SLURM_JOB_ID and SLURM_STEP_ID"
    ports = list(chosen.by_local_rank)
    assert len(set(ports)) == tasks
    assert min(ports) >= 1024
    assert max(ports) <= 32767
    assert choose_ports(step(job_id, step_id), tasks) == chosen


@pytest.mark.parametrize("tasks", [1, 8, 16])
def test_jobs_and_steps_that_run_together_have_different_ports(tasks: int) -> None:
    """The last 100 jobs of a cluster, with 8 steps each, share no port."""
    taken: dict[int, str] = {}
    for job in range(123_400, 123_500):
        for number in range(8):
            for port in choose_ports(step(str(job), str(number)), tasks).by_local_rank:
                assert port not in taken, (
                    taken[port],
                    job,
                    number,
                )
                taken[port] = f"{job}.{number}"
