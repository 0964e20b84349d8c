"""Each benchmark has a table in benchmarks/README.md, and computes the right ratios."""

from __future__ import annotations

import sys

import pytest
from folders import ROOT
from local_run import captured

BENCHMARKS = ROOT / "benchmarks"


def run(name: str, *arguments: str) -> str:
    return captured(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), *arguments],
        status=0,
    ).stdout


@pytest.mark.nightly
def test_ratios_are_those_of_one_run() -> None:
    rows = run("startup", "--rounds", "1").splitlines()
    assert rows[0] == "| command | ratio | ms over Python | ms |"
    assert rows[2].startswith("| python | 1.00 | 0.0 | ")
    rows = run("meeting", "4", "8").splitlines()[2:]
    assert [row.split(" | ")[:2] for row in rows] == [["| 4", "1.0"], ["| 8", "2.0"]]
