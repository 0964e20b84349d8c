"""`check` compares the options of the batch file with Slurm's data about the job."""

from __future__ import annotations

import pytest
from kinds import Texts
from pytest_mock import MockerFixture

from slurm_resolver.preflight.job_checks import check_job
from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.step_variables import SlurmStep

STEP = {"SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0"}
JOB = {"JobId": "42", "BatchFlag": "1", "Requeue": "1"}


def told(mocker: MockerFixture, batch_file: str, job: Texts, open_mode: str = "t") -> str:
    """Returns "status: detail" of the check."""
    mocker.patch.object(scontrol, "show_job", return_value={**JOB, **job})
    mocker.patch.object(scontrol, "show_config", return_value={})
    mocker.patch.object(scontrol, "batch_script", return_value=batch_file)
    (result,) = check_job(SlurmStep.read({**STEP, "SLURM_OPEN_MODE": open_mode}))
    assert result.id == "requeue"
    return f"{result.status}: {result.detail}"


# The options in the batch file, SLURM_OPEN_MODE, whether Slurm may requeue the job, and the result.
# A job that asks for neither a requeue nor a signal gets no warning.
JOBS = [
    ("", "t", "1", "ok: the job can be requeued"),
    ("--no-requeue", "t", "0", "ok: the job cannot be requeued"),
    ("--requeue", "t", "1", "warning: a requeued job overwrites its output"),
    ("--requeue --open-mode=append", "a", "1", "ok: the job can"),
    ("--signal USR1@60", "t", "0", "warning: the job cannot be requeued after"),
    ("--signal=USR1@60 --no-requeue", "t", "0", "ok: the job cannot"),
    ("\nsrun true\n#SBATCH --requeue", "t", "1", "ok: the job can"),
]


@pytest.mark.parametrize(("options", "open_mode", "requeue", "expected"), JOBS)
def test_only_a_job_that_asks_to_continue_is_warned(
    mocker: MockerFixture,
    options: str,
    open_mode: str,
    requeue: str,
    expected: str,
) -> None:
    batch_file = f"#!/bin/sh\n#SBATCH -N2 {options}\nsrun true\n"
    assert told(mocker, batch_file, {"Requeue": requeue}, open_mode).startswith(expected)


def test_what_cannot_be_known_is_skipped(mocker: MockerFixture) -> None:
    assert told(mocker, "", {"BatchFlag": "0"}).startswith("skipped: job 42 has no batch file")
    mocker.patch.object(scontrol, "show_job", side_effect=OSError("scontrol is not on PATH"))
    (result,) = check_job(SlurmStep.read(STEP))
    assert (result.status, result.detail) == ("skipped", "scontrol is not on PATH")
    assert check_job(SlurmStep()) == []
