"""`slurm-resolver check` on one machine, alone and in a local step."""

from __future__ import annotations

import json

import pytest
from captured import Captured
from local_run import COMMAND, captured, in_step, refused


def run(*words: str, status: int = 0) -> str:
    """Returns the output of two tasks, without the task numbers."""
    return captured(in_step("-n 2 --no-label", *words), status=status).stdout


def test_a_good_step_is_one_line() -> None:
    pytest.importorskip("tensorflow")
    told = "check: 9 ok, 2 skipped"
    assert run(*COMMAND, "check") == f"{told} (--verbose prints all)\n"
    *checks, last = run(*COMMAND, "check", "--verbose").splitlines()
    assert (len(checks), last) == (11, told)
    assert checks[0] == "presence    ok       2 tasks present"


ONE = "worker 1 (rank 1 on localhost)"


def test_a_task_that_does_not_come_is_named() -> None:
    (line,) = run(
        "bash",
        "-c",
        f'[ "$SLURM_PROCID" = 1 ] || exec {" ".join(COMMAND)} check --json --timeout 2',
        status=1,
    ).splitlines()
    (presence,) = json.loads(line)["checks"]
    assert presence["status"] == "failed"
    assert "1 of 2 tasks did not reach " in presence["detail"]
    assert ONE in presence["detail"]


def test_outside_a_step_it_says_how_to_start_it(capsys: Captured) -> None:
    assert "no step to check: start this command with srun" in refused(capsys, "check")


def test_parameter_servers_are_not_measured(capsys: Captured) -> None:
    """It is said at once, outside of a step as well."""
    words = ["check", "--collective", "--jobs", "ps=1,worker=-1"]
    assert "--collective with ps in --jobs: " in refused(capsys, *words)
