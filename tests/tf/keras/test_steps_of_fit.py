"""What the steps of `fit` do where they cannot be split, live."""

from __future__ import annotations

import os

import pytest
from folders import quiet_helper
from keras_marks import KERAS_3
from keras_outcomes import SECONDS
from kinds import Completed
from local_run import captured, in_step

pytestmark = KERAS_3

PROGRAM = quiet_helper("steps_of_fit.py")


def run(*arguments: str, workers: int = 0, **variables: str) -> Completed:
    command = [*PROGRAM, *arguments]
    return captured(
        in_step(f"-n {workers} --no-label", *command) if workers else command,
        status=0,
        env={"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "", **variables},
        timeout=SECONDS,
    )


def found(done: Completed) -> list[str]:
    return sorted(line for line in done.stdout.splitlines() if line.startswith("found"))


def test_a_batch_with_fewer_rows_than_replicas_equals_one_process() -> None:
    """Each worker has two replicas, and the number of rows is unknown when a step is written."""
    kinds = ("arrays", "generator", "unknown")
    alone = run("nothing", *kinds)
    done = run("nothing", *kinds, workers=2, REPLICAS="2")
    assert found(done) == sorted(found(alone) * 2)
    assert "cannot be split" not in done.stderr


@pytest.mark.parametrize("broken", ["rule", "writing"])
def test_an_error_of_the_partition_ends_no_training(broken: str) -> None:
    alone = run(broken, "arrays")
    done = run(broken, "arrays", workers=2)
    assert found(done) == sorted(found(alone) * 2)
    line = "cannot be split: slurm_resolver has failed to split it (ZeroDivisionError: as the"
    assert line in done.stderr
