"""Compares the resolved place of every rank with the places in recorded real Slurm steps."""

from __future__ import annotations

from unittest import mock

import pytest
from captured import Patch
from hypothesis import given
from hypothesis import strategies as st
from kinds import Strings, Texts
from recorded_steps import Recording, recordings, unknowable
from task_variables import ALONE

import slurm_resolver as sr
from slurm_resolver.cluster import layout_exchange
from slurm_resolver.cluster.layout import (
    Layout,
    layout_from_environment,
    verify_layout,
)
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.resolve import resolve_step
from slurm_resolver.errors import (
    EnvironmentValueError,
    LayoutError,
    SlurmResolverError,
    UnknownLayoutError,
)
from slurm_resolver.slurm.step_variables import SlurmStep

STEPS = [r for r in recordings() if r.is_step]


def resolved(task: Texts) -> Layout:
    step = SlurmStep.read(task)
    layout = layout_from_environment(step)
    verify_layout(layout, step)
    return layout


@pytest.mark.parametrize("recording", STEPS, ids=lambda recording: recording.name)
def test_every_recorded_step_is_right_or_an_error_in_every_task_that_can_see_it(
    recording: Recording,
) -> None:
    reason = unknowable(recording)
    for task in recording.tasks:
        if reason is None:
            assert places(resolved(task)) == recording.truth()
        elif sees_only_its_own(task, reason):
            assert not resolved(task).unambiguous  # it starts a rendezvous if allowed
        else:
            with pytest.raises(UnknownLayoutError, match=reason):
                resolved(task)


def sees_only_its_own(task: Texts, reason: str) -> bool:
    """Returns whether only tasks on other nodes have variables that contradict the layout."""
    try:
        verify_layout(layout_from_environment(SlurmStep.read(task)), SlurmStep.read(task))
    except UnknownLayoutError:
        return False
    return "own --distribution" in reason


def places(layout: Layout) -> dict[int, tuple[str, int]]:
    """Returns the node and the local rank of each rank."""
    nodes = (layout.nodes[node] for node in layout.node_of)
    return dict(enumerate(zip(nodes, layout.local_rank_of)))


HET = {
    "SLURM_JOB_ID": "33",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "a[1-2],z1",
    "SLURM_STEP_TASKS_PER_NODE": "2,1,2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "z1",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "a[1-2]",
    "SLURM_DISTRIBUTION_HET_GROUP_1": "cyclic",
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"SLURM_JOB_NODELIST_HET_GROUP_1": "a[1-2],z1"},
            r"the nodes z1,a\[1-2\],z1, and SLURM_STEP_NODELIST has a\[1-2\],z1, but no var",
        ),
        ({"SLURM_JOB_NODELIST_HET_GROUP_1": "a1"}, "the nodes z1,a1, and"),
    ],
)
def test_components_that_leave_the_layout_open(changes: Texts, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        layout_from_environment(SlurmStep.read({**HET, **changes}))


def test_a_component_without_nodes_is_named() -> None:
    with pytest.raises(EnvironmentValueError, match=r"HET_SIZE=3, but \w+_NODELIST_HET_GROUP_2 is"):
        SlurmStep.read({**HET, "SLURM_HET_SIZE": "3"})


TASK = {
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"SLURM_STEP_NUM_TASKS": "3"}, ["SLURM_STEP_NUM_TASKS=3", "4"]),
        ({"SLURM_STEP_NUM_NODES": "3"}, ["SLURM_STEP_NUM_NODES=3", "2"]),
        ({"SLURM_STEP_TASKS_PER_NODE": "2"}, ["SLURM_STEP_NODELIST has", "2 nodes", "1 counts "]),
        (
            {"SLURM_STEP_NODELIST": "n9,n9"},
            ["SLURM_STEP_NODELIST", "2 nodes (n[9,9])", "each node once"],
        ),
        ({"SLURM_PROCID": "4"}, ["SLURM_PROCID=4; expected a rank from 0 to 3"]),
        ({"SLURMD_NODENAME": "n9"}, ["SLURMD_NODENAME=n9, but block ", "gives it n10: "]),
        ({"SLURM_LOCALID": "1"}, ["SLURM_LOCALID=1, but", "gives it 0: "]),
        ({"SLURM_GTIDS": "1,2"}, ["SLURM_GTIDS=1,2, but", "gives it 2,3: "]),
        ({"SLURM_DISTRIBUTION": "plane"}, ["SLURM_DIST_PLANESIZE is not set", "plane=N"]),
        (
            {"SLURM_STEP_TASKS_PER_NODE": "99999999(x2)", "SLURM_STEP_NUM_TASKS": "4"},
            ["199999998 tasks", "at most 16,777,216"],
        ),
    ],
)
def test_contradictions_are_named(changes: Texts, named: Strings) -> None:
    with pytest.raises(LayoutError) as caught:
        resolved({**TASK, **changes})
    for text in named:
        assert text in str(caught.value)


@pytest.mark.parametrize("counts", [(2, 2), (2, 1)])
def test_from_26_05_on_block_is_unknown_over_several_nodes(counts: tuple[int, ...]) -> None:
    step = SlurmStep(
        nodes=("n9", "n10"),
        tasks_per_node=counts,
        distribution="block",
        sluid="s1",
    )
    with pytest.raises(UnknownLayoutError, match=r"topology may order .*srun -m plane=N`"):
        layout_from_environment(step)


@pytest.mark.parametrize("node_id", [1, 0])
def test_a_component_that_slurmstepd_alone_knows_is_doubted_though_it_fits(node_id: int) -> None:
    step = SlurmStep.read({**TASK, "SLURM_NODEID": str(node_id)}).replace(is_component=True)
    with pytest.raises(UnknownLayoutError, match="inside a plain allocation"):
        layout_from_environment(step)


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ({"SLURM_LOCALID": "0"}, None),  # SLURM_NODEID is not needed
        ({}, "SLURM_LOCALID is not set"),
    ],
)
def test_what_a_task_reports_of_its_place(
    place: Texts, error: str | None, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("SLURM_RESOLVER_LAYOUT", "")
    service = mock.Mock()
    service.return_value.gather.return_value = {0: ("n9", None)}
    monkeypatch.setattr(layout_exchange, "connect", service)
    environ = {**ALONE, **place, "SLURMD_NODENAME": "n9"}
    if error is None:
        assert sr.resolve(layout="rendezvous", environ=environ).layout.source == "rendezvous"
        return
    with pytest.raises(EnvironmentValueError, match=error):
        sr.resolve(layout="rendezvous", environ=environ)
    assert not service.called  # the service would wait for this task


def test_tasks_per_node_may_name_the_nodes() -> None:
    step = SlurmStep.read({"SLURM_PROCID": "0"})
    options = ClusterOptions(tasks_per_node={"n9": 2})
    assert resolve_step(step, options).layout.source == "tasks_per_node"


VALUES = st.sampled_from(
    ["", "0", "1", "2", "-1", "3", "n1", "n[1-2]", "n2,n1", "1(x2)", "2,1", "cyclic", "plane"]
)


@given(
    st.dictionaries(
        st.sampled_from([*TASK, *HET, "SLURM_LOCALID", "SLURM_DISTRIBUTION", "SLURM_GTIDS"]), VALUES
    )
)
def test_any_environment_is_a_layout_or_an_error_of_this_package(environ: Texts) -> None:
    try:
        layout = resolved(environ)
    except SlurmResolverError:
        return
    assert layout.num_tasks == len(places(layout))
