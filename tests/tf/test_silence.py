"""A worker that stops is named wherever the others wait, and ends the training as its reason."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from folders import helper
from local_run import captured, in_step

GRACE = 4
MOMENTS = (
    "scope",
    "before fit",
    "first step",
    "step",
    "epoch's end",
    "saving",
    "before predict",
)
QUICK = (
    ("first step", 0),  # whose process runs the service
    ("saving", 1),
)


@pytest.mark.parametrize(
    ("moment", "rank"),
    [
        pytest.param(
            moment,
            rank,
            marks=() if (moment, rank) in QUICK else pytest.mark.nightly,
        )
        for moment in MOMENTS
        for rank in (0, 1)
    ],
)
def test_a_stopped_worker_is_named(moment: str, rank: int, tmp_path: Path) -> None:
    done = captured(
        in_step("-n 2", *helper("silent_training.py"), moment, str(rank)),
        cwd=tmp_path,
        env={
            **os.environ,
            "SLURM_RESOLVER_NETWORK_GRACE": str(GRACE),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        timeout=240,
    )
    log = done.stdout + done.stderr
    lines = re.findall(rf"^{1 - rank}: (.*(?:no answer|is gone).*)", log, re.M)
    name = rf"worker {rank} \(rank {rank} on localhost\)"
    assert re.match(rf"no answer for {GRACE} s from {name}, process \d+", lines[0]), log
    for line in lines[1:]:
        assert re.search(rf"{name} is gone.*: its process has not answered for 16 s", line), log
    assert "FitError" in lines[-1], log
    assert done.returncode != 0
