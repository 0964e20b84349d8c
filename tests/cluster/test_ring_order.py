"""In every layout, TensorFlow's ring visits the hosts one after another."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest
from assigned_roles import assign, layout_of
from hypothesis import given
from hypothesis import strategies as st
from kinds import Counts

from slurm_resolver.cluster.ring_order import order_by_ring
from slurm_resolver.cluster.roles import Roles


def ring(roles: Roles) -> list[int]:
    """Returns the ranks in the order of the ring, which sorts the names of their tasks."""
    names = {
        f"/job:{job}/replica:0/task:{index}": rank
        for job in ("chief", "worker")
        for index, rank in enumerate(roles.get(job, ()))
    }
    return [names[name] for name in sorted(names)]


def leaves(nodes: Sequence[int]) -> int:
    """Returns how often the ring leaves the node that it leaves most often."""
    following = [
        *nodes[1:],
        *nodes[:1],
    ]
    return max(Counter(n for n, other in zip(nodes, following) if n != other).values(), default=0)


@pytest.mark.parametrize(
    ("counts", "distribution", "jobs", "workers"),
    [
        # rank order is already best
        (
            [1] * 12,
            "block",
            None,
            "0 1 2 3 4 5 6 7 8 9 10 11",
        ),
        # the ring goes 0 1 10 11 2 …
        (
            [6, 6],
            "block",
            None,
            "0 1 4 5 6 7 8 9 10 11 2 3",
        ),
        (
            [2, 2],
            "cyclic",
            None,
            "0 2 1 3",
        ),
        (
            [3, 2, 1],
            "cyclic",
            None,
            "0 3 5 1 4 2",
        ),
        # the chief comes first, and then its node's workers
        (
            [3, 3],
            "cyclic",
            {"chief": 1, "worker": 5},
            "2 4 1 3 5",
        ),
        # neither parameter servers nor the evaluator are in the ring
        (
            [3, 3],
            "cyclic",
            {
                "evaluator": 1,
                "ps": 1,
                "worker": 4,
            },
            "2 4 3 5",
        ),
    ],
)
def test_the_workers_by_index(
    counts: list[int], distribution: str, jobs: Counts | None, workers: str
) -> None:
    layout = layout_of(counts, distribution)
    roles = assign(layout, jobs)
    assert " ".join(map(str, roles["worker"])) == workers
    assert leaves([layout.node_of[rank] for rank in ring(roles)]) <= 1
    assert list(assign(layout, jobs, worker_order="rank")["worker"]) == sorted(roles["worker"])


def test_the_ring_keeps_the_order_in_which_a_topology_gives_ranks_to_the_nodes() -> None:
    node_of = [node for node in (0, 2, 1, 3) for _ in range(4)]
    workers = order_by_ring(range(16), node_of)
    by_ring = [node_of[workers[index]] for index in sorted(range(16), key=str)]
    assert list(dict.fromkeys(by_ring)) == [0, 2, 1, 3]
    assert leaves(by_ring) == 1


small = st.lists(
    st.integers(0, 3),
    min_size=1,
    max_size=7,
)


@given(small, st.booleans())
def test_no_order_is_better_and_rank_order_is_kept_where_none_is(
    node_of: list[int], chief: bool
) -> None:
    """Compares with all orders of up to seven workers, on nodes in any order."""
    first = node_of[:1] if chief else []
    workers = range(len(first), len(node_of))
    places = [node_of[rank] for rank in workers]
    best = min(
        leaves(
            [
                *first,
                *order,
            ]
        )
        for order in itertools.permutations(places)
    )
    ordered = list(order_by_ring(workers, node_of, [0] if chief else []))
    assert sorted(ordered) == list(workers)
    assert leaves(first + [node_of[rank] for rank in ordered]) == best
    if (
        leaves(
            [
                *first,
                *places,
            ]
        )
        == best
    ):
        assert ordered == list(workers)
    if workers and not chief:
        assert ordered[0] == 0
