"""Each benchmark has a table in benchmarks/README.md, and computes the right ratios."""

from __future__ import annotations

import re
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
    rows = run("meeting", "4", "8", "--training", "1").splitlines()[2:4]
    assert [row.split(" | ")[:2] for row in rows] == [["| 4", "1.0"], ["| 8", "2.0"]]


def test_the_figures_of_resolution_are_of_this_code() -> None:
    page = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    measured = re.findall("<!-- measured code: (.*) -->", page)
    assert measured == run("measured_code").split(), (
        "slurm/, cluster/ or the resolver has changed since the figures of benchmarks/README.md "
        "were measured: run `python benchmarks/resolution.py --write`"
    )
