"""What `slurm-resolver status` prints."""

from __future__ import annotations

import json

import pytest
from captured import Captured, Patch

from slurm_resolver.cli import main, status
from slurm_resolver.cli.status import table
from slurm_resolver.coordination import usage
from slurm_resolver.coordination.progress import DATA, IDLE, STEP, Report


def test_the_table_of_status() -> None:
    workers = {
        "worker 0": Report(
            stage="training",
            epoch=3,
            step=812,
            phase=STEP,
            ms=51.23,
            seconds={usage.DATA: 1, usage.COMPUTING: 99},
        ),
        "worker 1": Report(
            stage="validation",
            epoch=3,
            step=1,
            phase=DATA,
            seconds={usage.DATA: 34, usage.BETWEEN: 10, usage.WAITING: 56},
        ),
        "worker 2": Report(silent=40.0),
    }
    assert [" ".join(line.split()) for line in table(workers).splitlines()] == [
        "worker epoch step stage doing ms per step data between reported",
        "worker 0 3 812 training in the step 51.2 1% 0% 0 s ago",
        "worker 1 3 1 validation waiting for data 0.0 34% 10% 0 s ago",
        f"worker 2 0 0 {IDLE} 0.0 0% 0% 40 s ago",
    ]
    assert len({len(line) for line in table(workers).splitlines()}) == 1


@pytest.mark.parametrize(("silent", "slowest"), [([], 3), (["worker 0 (rank 2 on n1)"], None)])
def test_json_has_the_rank_of_the_slowest_worker(
    silent: list[str], slowest: object, capsys: Captured, monkeypatch: Patch
) -> None:
    seconds = [{usage.WAITING: 90.0, usage.DATA: 10.0}, {usage.DATA: 100.0}]
    workers = [
        {"name": f"worker {index}", "rank": index + 2, **Report(seconds=spent)._asdict()}
        for index, spent in enumerate(seconds)
    ]
    answer = {"workers": workers, "silent": silent}
    monkeypatch.setattr(status, "ask_service", lambda *_: answer)
    assert main(["status", "--json", "42"]) == 0
    assert json.loads(capsys.readouterr().out)["slowest"] == slowest
