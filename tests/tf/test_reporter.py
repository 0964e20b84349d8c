"""If one of two workers is stuck, both logs name it and the place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from folders import HELPERS
from kinds import Strings
from local_run import in_step

from slurm_resolver.coordination import progress as phases
from slurm_resolver.tf.reporter import Reporter

PROGRAM = HELPERS / "stuck_training.py"
LIMIT = 3
TRAINED = ["0: trained", "1: trained"]


def start(folder: Path, kind: str, seconds: float = 0, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        in_step("-n 2", sys.executable, str(PROGRAM), kind),
        cwd=folder,
        env={
            **os.environ,
            "SLURM_RESOLVER_STALL_SECONDS": str(LIMIT),
            "STUCK_SECONDS": str(seconds),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **env,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(job: subprocess.Popen[str]) -> Strings:
    """Waits for the end of both tasks, and returns their lines."""
    try:
        return job.communicate(timeout=180)[0].splitlines()
    finally:
        job.kill()


def stalls(lines: Strings) -> Strings:
    """Returns the messages about stalls, without the seconds and epochs."""
    said = [line for line in lines if re.search(r"no step for|steps advance", line)]
    return [re.sub(r"\d+ s", "N s", re.sub(r" of epoch \d+", "", line)) for line in said]


def test_the_time_of_a_training_is_counted_by_cause() -> None:
    reporter = Reporter()
    reporter.begin_training(is_measured=False)
    reporter.enter(phases.START, phases.TRAINING)
    for epoch in (1, 2):
        reporter.begin_epoch(epoch)
        for count in (1, 1, 0):  # at the end there is no data for a step
            reporter.begin_step()
            reporter.end_step(count)
        reporter.enter(phases.STEP, phases.VALIDATION)
        reporter.enter(phases.CALLBACK, phases.TRAINING)
    report = reporter.report()
    assert (report.epochs, report.steps) == (2, 4)
    assert {"start", "steps", "between steps", "validation"} <= report.seconds.keys()


def test_what_a_callback_predicts_is_no_step_of_the_training() -> None:
    reporter = Reporter()
    reporter.begin_training(is_measured=False)
    reporter.enter(phases.START, phases.TRAINING)
    reporter.begin_epoch(1)
    reporter.begin_step()
    reporter.end_step()
    with reporter.aside("predict"):
        for number in (1, 2):
            reporter.begin_step()
            assert reporter.where() == f"in step {number} of predict"
            reporter.end_step()
    report = reporter.report()
    assert (report.steps, report.where()) == (1, "before step 1 of epoch 1")
    assert report.ms == 0.0  # of a single step, it is not known
    assert report.seconds.keys() == {"start", "between steps"}


def test_waiting_while_another_worker_compiles_is_no_loss() -> None:
    reporter = Reporter()
    waited = [5.0]
    reporter.waited = lambda: waited[0]
    reporter.begin_training(is_measured=True)
    reporter.enter(phases.START, phases.TRAINING)
    reporter.begin_step()
    reporter.enter(phases.COMPILING)
    waited[0] += 100.0
    reporter.end_step()
    reporter.begin_step()
    reporter.end_step()
    assert reporter.report().seconds["waiting for other workers and sending"] == 0.0


NAMES = [f"worker {rank} (rank {rank} on localhost)" for rank in (0, 1)]
WHERE = {
    "callback": "{1} in step 6, in a callback. The others wait: {0} in step 7",
    "data": "{1} in step 6, waiting for data. The others wait: {0} in step 6",
    "loop": "{1} in step 6. The others wait: {0} in step 7, waiting for data",
}


@pytest.mark.parametrize("kind", WHERE)
def test_a_stuck_worker_is_named_and_shows_where(kind: str, tmp_path: Path) -> None:
    lines = finish(start(tmp_path, kind, 9))
    where = WHERE[kind].format(*NAMES)
    for rank in (0, 1):
        assert [line for line in stalls(lines) if line.startswith(f"{rank}: ")] == [
            f"{rank}: no step for N s: {where}",
            f"{rank}: steps advance again",
        ]
    traced = [line for line in lines if f'"{PROGRAM}", line' in line and "stand_still" in line]
    assert {line[0] for line in traced} == {"1"}
    assert sorted(line for line in lines if line.endswith("trained")) == TRAINED


def test_long_compilations_and_validations_are_no_fault(tmp_path: Path) -> None:
    lines = finish(start(tmp_path, "good", 9))
    assert stalls(lines) == []
    assert sorted(line for line in lines if line.endswith("trained")) == TRAINED
