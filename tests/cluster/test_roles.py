"""The job of each rank."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from assigned_roles import assign, layout_of, play
from hypothesis import given
from hypothesis import strategies as st
from kinds import Counts, Fields
from task_variables import TASK

import slurm_resolver as sr
from slurm_resolver.cluster.layout import Layout
from slurm_resolver.errors import JobsError
from slurm_resolver.slurm.step_variables import Component


@pytest.mark.parametrize(
    ("counts", "distribution", "jobs", "spread", "rank"),
    [
        ([2, 2], "block", None, "w0 w1 w2 w3", None),
        (
            [1, 1, 1],
            "block",
            {
                "chief": 1,
                "evaluator": 1,
                "worker": 1,
            },
            "c0 e0 w0",
            None,
        ),
        # rank order would crowd the first node with parameter servers
        ([2, 2], "block", {"ps": 2, "worker": 2}, "p0 w0 p1 w1", "p0 p1 w0 w1"),
        ([2, 2], "cyclic", {"ps": 2, "worker": 2}, "p0 p1 w0 w1", None),
        # the chief has the only task of the first node
        (
            [1, 2, 2],
            "block",
            {
                "chief": 1,
                "ps": 2,
                "worker": 2,
            },
            "c0 p0 w0 p1 w1",
            "c0 p0 p1 w0 w1",
        ),
        # the ps would be even, but beside the chief; another node has room
        (
            [2, 2],
            "block",
            {
                "chief": 1,
                "ps": 1,
                "worker": 2,
            },
            "c0 w0 p0 w1",
            "c0 p0 w0 w1",
        ),
        # without a chief, there is no coordinator to avoid
        ([2, 2], "block", {"ps": 1, "worker": 3}, "p0 w0 w1 w2", None),
        # jobs with names of their own
        (
            [2, 2],
            "block",
            {
                "actor": 1,
                "learner": 1,
                "replay": 2,
            },
            "a0 l0 r0 r1",
            None,
        ),
        (
            [2, 2],
            "block",
            {
                "actor": 1,
                "chief": 1,
                "ps": 2,
            },
            "c0 p0 p1 a0",
            "a0 c0 p0 p1",
        ),
    ],
)
def test_placement(
    counts: list[int],
    distribution: str,
    jobs: Counts | None,
    spread: str,
    rank: str | None,
) -> None:
    layout = layout_of(counts, distribution)
    assert play(layout, jobs) == spread
    assert play(layout, jobs, placement="rank") == (rank or spread)


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ({"my-mesh": 4}, "'my-mesh' would have 4[.] .*: names of letters, .* begin with a letter"),
        (
            {"worker": 3},
            "'worker': 3} do not fit the 4 tasks of the job step .SLURM_STEP_NUM_TASKS.: they sum",
        ),
        ({"ps": 5, "worker": -1}, "do not fit the 4 tasks .*: 'worker' would have -1[.]"),
        ({"ps": -1, "worker": -1}, "'worker' would have -1[.] .* of which one may be -1"),
        ({"ps": 1.0, "worker": 3}, "'ps' would have 1.0[.] .* whole numbers"),
        ({"ps": "1", "worker": -1}, "'ps' would have '1'[.] "),
        ({"ps": None}, "'ps' would have None[.] "),
        ({None: 4}, "None would have 4[.] "),
        ({"chief": 2, "worker": -1}, "'chief' would have 2[.] .* at most one chief"),
        ({"chief": -1}, "'chief' would have 4[.] .* at most one chief"),
        ({}, "jobs={} do not fit .*: they sum to 0[.] .* Change jobs or the number of tasks[.]$"),
        (["worker"], "Expected counts by job name"),
        (5, "jobs=5 do not fit .* Expected counts by job name"),
    ],
)
def test_jobs_that_do_not_fit(jobs: Any, message: str) -> None:
    with pytest.raises(JobsError, match=message):
        assign(layout_of([2, 2]), jobs)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"placement": "even"}, "placement='even': expected one of spread, rank"),
        ({"layout": "yes"}, "layout='yes': expected one of auto, "),
        ({"jobs": 5}, "jobs=5 do not fit .* Expected counts by job name"),
        ({"het_groups": {"worker": 0}}, r"needs 4 tasks of component 0, .* this step are \[\]"),
        (
            {"jobs": {"mesh": 4}, "het_groups": {"mush": 0}},
            "het_groups=.'mush': 0.: expected a mapping from these names .* evaluator, mesh[.]",
        ),
        ({"het_groups": 5}, "het_groups=5: expected a mapping"),
        ({"gpu_jobs": ["wrkr"]}, "gpu_jobs=.'wrkr'.: expected a collection of .* evaluator[.]"),
        ({"gpu_jobs": "worker"}, "gpu_jobs='worker': expected a collection of these names: chief"),
    ],
)
def test_keywords_that_make_no_sense(keywords: Fields, message: str) -> None:
    error = sr.LayoutError if "layout" in keywords else JobsError
    with pytest.raises(error, match=message):
        sr.resolve(environ=TASK, **keywords)


def heterogeneous() -> Layout:
    """Returns a layout with z1 (2 tasks) as component 0, and a1 (2) and a2 (1) as component 2."""
    return Layout(
        ("z1", "a1", "a2"),
        [0, 0, 1, 1, 2],
        [0, 1, 0, 1, 0],
        "block : block",
        components=[
            Component(0, ("z1",), None, None),
            Component(2, ("a1", "a2"), None, None),
        ],
    )


@pytest.mark.parametrize(
    ("jobs", "het_groups", "played"),
    [
        ({"ps": 2, "worker": 3}, {"ps": 2}, "w0 w1 p0 w2 p1"),
        (
            {
                "chief": 1,
                "ps": 2,
                "worker": -1,
            },
            {"ps": 0},
            "p0 p1 c0 w0 w1",
        ),
        (
            {
                "chief": 1,
                "ps": 1,
                "worker": 3,
            },
            {"chief": 2, "ps": 2},
            "w0 w1 c0 w2 p0",
        ),
        # a parameter server on each node, though a worker has the first rank of one
        (
            {
                "evaluator": 1,
                "ps": 3,
                "worker": 1,
            },
            {"worker": 2},
            "p0 e0 w0 p1 p2",
        ),
    ],
)
def test_het_groups(jobs: Counts, het_groups: Counts, played: str) -> None:
    assert play(heterogeneous(), jobs, het_groups=het_groups) == played


@pytest.mark.parametrize(
    ("jobs", "het_groups", "message"),
    [
        ({"ps": 3, "worker": 2}, {"ps": 0}, "'ps' needs 3 tasks of component 0, which has 2"),
        (
            {"ps": 1, "worker": 4},
            {"ps": 1},
            r"'ps' needs 1 task of component 1, which has 0 free ones; .* \[0, 2\]",
        ),
        ({"ps": 0, "worker": 5}, {"ps": 9}, "'ps' needs 0 tasks of component 9, which has 0"),
    ],
)
def test_het_groups_that_do_not_fit(jobs: Counts, het_groups: Counts, message: str) -> None:
    with pytest.raises(JobsError, match=message):
        assign(heterogeneous(), jobs, het_groups=het_groups)


@given(
    st.lists(
        st.integers(1, 5),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["block", "cyclic"]),
    st.data(),
)
def test_parameter_servers_are_spread_as_evenly_as_can_be(
    counts: list[int], distribution: str, data: st.DataObject
) -> None:
    layout = layout_of(counts, distribution)
    total = sum(counts)
    chiefs = data.draw(st.integers(0, 1), label="chiefs")
    servers = data.draw(st.integers(0, total - chiefs), label="servers")
    jobs = {
        "chief": chiefs,
        "ps": servers,
        "worker": -1,
    }
    played = play(layout, jobs, worker_order="rank").split()
    assert sum(name.startswith("p") for name in played) == servers
    assert ("c0" in played) == bool(chiefs)
    assert not chiefs or played[0] == "c0"
    has = Counter(node for node, name in zip(layout.node_of, played) if name.startswith("p"))
    room = [c - has[node] - (chiefs and node == 0) for node, c in enumerate(counts)]
    for node in range(len(counts)):
        if room[node] > 0:  # no other node has two more, and the chief's node has not even one more
            assert max(has.values(), default=0) - has[node] <= 1
            assert not chiefs or node == 0 or has[0] <= has[node]
