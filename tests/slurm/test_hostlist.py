"""The grammar of host lists and counts agrees with Slurm's own answers."""

from __future__ import annotations

import contextlib
import json
import pickle
import tracemalloc
from typing import Callable

import pytest
from folders import DATA
from hypothesis import given
from hypothesis import strategies as st
from kinds import Strings

from slurm_resolver import (
    HostlistError,
    compress_hostlist,
    count_hostlist,
    expand_hostlist,
    expand_tasks_per_node,
)

with open(DATA / "hostlists.jsonl", encoding="utf-8") as lines:
    FROM_SLURM = [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("expression", "hosts"),
    [
        (
            case["expr"],
            case["hosts"],
        )
        for case in FROM_SLURM
    ],
)
def test_expands_as_scontrol_show_hostnames(expression: str, hosts: Strings | None) -> None:
    if hosts is None:
        with pytest.raises(HostlistError):
            expand_hostlist(expression)
    else:
        assert expand_hostlist(expression) == hosts
        assert count_hostlist(expression) == len(hosts)
        assert expand_hostlist(compress_hostlist(hosts)) == hosts


WRONG = [
    (expand_hostlist, "a[1-2],n[3-1],b", "[3-1]"),
    (expand_hostlist, "n[1-2", "["),
    (expand_hostlist, "n[1[2]]", "["),
    (expand_hostlist, "n[0-65536]", "[0-65536]"),
    (expand_tasks_per_node, "1,", ""),
    (expand_tasks_per_node, "1,-1", "-1"),
    (expand_tasks_per_node, "1,2(x0)", "2(x0)"),
    (expand_tasks_per_node, "1,2(x16777216)", "2(x16777216)"),
    (expand_tasks_per_node, "1,2(3)", "2(3)"),
]


@pytest.mark.parametrize(("expand", "expression", "part"), WRONG)
def test_an_error_carries_the_part_that_is_wrong(
    expand: Callable[[str], object],
    expression: str,
    part: str,
) -> None:
    with pytest.raises(HostlistError) as caught:
        expand(expression)
    assert caught.value.args[1:] == (expression, part)
    assert repr(part) in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_compress_refuses_what_no_list_can_hold() -> None:
    for host in ("", "n 1", "n,1", "n[1]"):
        with pytest.raises(HostlistError, match="not a host name"):
            compress_hostlist(["n1", host])


@pytest.mark.parametrize("expression", ["a[0-65535]b[0-65535]", "a[0-65535],b[1-65535]" * 300])
def test_a_list_that_is_too_long_costs_no_memory(expression: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(HostlistError, match="more than 16,777,216 hosts"):
            expand_hostlist(expression)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("hosts", "folded"),
    [
        (
            ["n1", "n2", "n3", "n7"],
            "n[1-3,7]",
        ),
        (["n09", "n10"], "n[09-10]"),
        (
            ["n1", "n01", "n001"],
            "n[1,01,001]",
        ),
        (
            ["n3", "n1", "n2"],
            "n[3,1-2]",
        ),
        (["a1.b", "a2.b"], "a1.b,a2.b"),
        (
            ["n8000000000000000000", "n8000000000000000001"],
            "n8[000000000000000000-000000000000000001]",
        ),
        (
            ["n1", "n1", "m", "m", "n2.b"],
            "n[1,1],m,m,n2.b",
        ),
        (
            [f"n{i}" for i in range(65_537)],
            "n[0-65535,65536]",
        ),  # Slurm's limit for a range
    ],
)
def test_compress_folds_neighbours(hosts: Strings, folded: str) -> None:
    assert compress_hostlist(hosts) == folded
    assert expand_hostlist(folded) == hosts


NAMES = st.builds(
    lambda prefix, number, width: f"{prefix}{str(number).zfill(width)}",
    st.sampled_from(
        [
            "n",
            "node-a",
            "rack1-",
            "",
            "a.b",
            "é",
        ]
    ),
    st.integers(0, 120),
    st.integers(1, 4),
) | st.text(st.characters(exclude_characters=", \t\n[]", exclude_categories=["Cs"]), min_size=1)


@given(st.lists(NAMES))
def test_expand_reads_back_what_compress_writes(hosts: Strings) -> None:
    folded = compress_hostlist(hosts)
    assert expand_hostlist(folded) == hosts
    assert count_hostlist(folded) == len(hosts)


@given(st.text(alphabet="n12[]-, x0"), st.text(alphabet="12(x),0 -"))
def test_any_text_is_a_list_or_an_error_of_its_own(text: str, counts: str) -> None:
    with contextlib.suppress(HostlistError):
        assert count_hostlist(text) == len(expand_hostlist(text))
    with contextlib.suppress(HostlistError):
        assert expand_tasks_per_node(counts)
