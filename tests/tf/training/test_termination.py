"""When a training that gets a signal saves."""

from __future__ import annotations

import json
from pathlib import Path

from folders import helper
from keras_marks import KERAS_3
from local_run import captured, in_step

pytestmark = KERAS_3

PROGRAM = helper("slurm_train.py")


def test_a_planned_preemption_finds_something_to_save(tmp_path: Path) -> None:
    """The preemption comes after the first step, however long the start takes."""
    done = captured(
        in_step(
            "--requeue --preempt-after 0",
            *PROGRAM,
            "loop",
            str(tmp_path),
            "--epochs=1",
            "--sleep=0.3",
        ),
        status=0,
    )
    lines = map(json.loads, (tmp_path / "rank.0.jsonl").read_text().splitlines())
    assert [line["done"] for line in lines if "done" in line] == list(range(1, 11))
    assert "restart 1 of at most 5: the step was preempted" in done.stderr
    assert "training resumes from" in done.stderr
