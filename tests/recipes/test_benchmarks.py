"""Each benchmark has a table in benchmarks/README.md, and computes the right ratios."""

from __future__ import annotations

import re
import sys

from folders import ROOT
from local_run import captured

BENCHMARKS = ROOT / "benchmarks"
SHARED = {
    "report",
    "real_slurm",
    "hosts",
    "comparison",
    "variants",
}  # imported by benchmarks


def run(name: str, *arguments: str) -> str:
    return captured(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), *arguments],
        status=0,
    ).stdout


def test_make_bench_runs_every_benchmark_and_the_readme_shows_its_results() -> None:
    (listed,) = re.findall(
        r"^BENCHMARKS = (.*)$",
        (ROOT / "Makefile").read_text(),
        re.M,
    )
    names = {path.stem for path in BENCHMARKS.glob("*.py")} - SHARED
    names = {name for name in names if not name.endswith("_task")}
    assert set(listed.split()) == names
    readme = (BENCHMARKS / "README.md").read_text()
    for name in names:
        (shown,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", readme, re.S)
        assert re.search(r"^\| --- \| ---: \|", shown, re.M), name
        assert f"`python benchmarks/{name}.py`" in readme
    for plot in re.findall(r"\]\((plots/\w+\.png)\)", readme):
        assert (BENCHMARKS / plot).read_bytes().startswith(b"\x89PNG"), plot


def test_ratios_are_those_of_one_run() -> None:
    rows = run("startup", "--rounds", "1").splitlines()
    assert rows[0] == "| command | ratio | ms over Python | ms |"
    assert rows[2].startswith("| python | 1.00 | 0.0 | ")
    rows = run("meeting", "4", "8").splitlines()[2:]
    assert [row.split(" | ")[:2] for row in rows] == [["| 4", "1.0"], ["| 8", "2.0"]]
