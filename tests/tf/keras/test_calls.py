"""How a call of `fit` looks in the output of its workers, and a strategy that comes too late."""

from __future__ import annotations

import os
import sys

import pytest
from folders import HELPERS
from kinds import Completed
from local_run import captured, in_step

PROGRAM = str(HELPERS / "verbose_training.py")


def train(argument: str, status: int) -> Completed:
    command = in_step("-n 2", sys.executable, PROGRAM, argument)
    return captured(command, status, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})


@pytest.mark.parametrize(("verbose", "workers"), [("default", "0"), ("2", "01"), ("0", "")])
def test_one_worker_shows_progress_unless_the_program_asks_for_it(
    verbose: str, workers: str
) -> None:
    lines = train(verbose, status=0).stdout.splitlines()
    assert sorted(line[0] for line in lines if "Epoch 2/2" in line) == list(workers)


def test_what_has_started_tensorflow_before_the_strategy_is_named() -> None:
    done = train("late", status=1)
    line = f"StartError: TensorFlow has been started before the strategy by {PROGRAM}, line "
    assert line in done.stderr
    assert ": tf.constant([1, 2]). Create the strategy before everything else" in done.stderr
