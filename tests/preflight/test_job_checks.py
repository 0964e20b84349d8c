"""`check` compares requeue and signals in the batch file with Slurm's data about the job."""

from __future__ import annotations

import pytest
from kinds import Texts
from pytest_mock import MockerFixture

from slurm_resolver.preflight.job_checks import check_job
from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.step_variables import SlurmStep

STEP = {"SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0"}
JOB = {"JobId": "42", "BatchFlag": "1", "Requeue": "1"}


def statuses(mocker: MockerFixture, batch_file: str, job: Texts, open_mode: str = "t") -> Texts:
    """Returns "status: detail" for each check id."""
    mocker.patch.object(scontrol, "show_job", return_value={**JOB, **job})
    mocker.patch.object(scontrol, "show_config", return_value={})
    mocker.patch.object(scontrol, "batch_script", return_value=batch_file)
    step = SlurmStep.read({**STEP, "SLURM_OPEN_MODE": open_mode})
    return {id: f"{status}: {detail}" for id, status, detail in check_job(step)}


# The options in the batch file, what follows them, SLURM_OPEN_MODE, whether Slurm may requeue the
# job, and the warnings. A job that asks for neither a requeue nor a signal gets none.
TRAP = "trap 'x 75' USR1"
WARNED = [
    ("", "srun true\n#SBATCH --signal=USR1", "t", "1", ""),
    ("--no-requeue", "", "t", "0", ""),
    (
        "--requeue",
        "",
        "t",
        "1",
        "requeue: a requeued job overwrites, signal: the batch file has no",
    ),
    ("--requeue --open-mode=append", "", "a", "1", "signal: the batch file has no --signal"),
    ("--signal USR1@60", "", "t", "0", "requeue: the job cannot be requeued"),
    ("--signal=USR1@60 --no-requeue", "", "t", "0", ""),
    ("--requeue --signal=USR1@60 --open-mode=append  # keeps it", "", "a", "1", ""),
    ("--signal=B:USR1@60", "", "a", "1", "signal: only the batch shell gets B:USR1; without B:"),
    ("--signal=B:USR1@60", TRAP, "a", "1", ""),
    ("--signal=B:USR2@60", TRAP, "a", "1", "signal: only the batch shell gets B:USR2"),
]


@pytest.mark.parametrize(("options", "rest", "open_mode", "requeue", "warned"), WARNED)
def test_only_a_job_that_asks_to_continue_is_warned(
    mocker: MockerFixture,
    options: str,
    rest: str,
    open_mode: str,
    requeue: str,
    warned: str,
) -> None:
    found = statuses(
        mocker,
        f"#!/bin/sh\n#SBATCH -N2 {options}\n{rest}\n",
        {"Requeue": requeue},
        open_mode,
    )
    told = [f"{id}: {text[9:]}" for id, text in found.items() if text.startswith("warning: ")]
    expected = warned.split(", ") if warned else []
    assert len(told) == len(expected)
    for text, start in zip(told, expected):
        assert text.startswith(start)


def test_what_cannot_be_known_is_skipped(mocker: MockerFixture) -> None:
    found = statuses(mocker, "", {"BatchFlag": "0"})
    assert set(found) == {"requeue", "signal"}
    assert all(text.startswith("skipped: job 42 has no batch file") for text in found.values())
    mocker.patch.object(scontrol, "show_job", side_effect=OSError("scontrol is not on PATH"))
    assert [tuple(result)[1:] for result in check_job(SlurmStep.read(STEP))] == [
        ("skipped", "scontrol is not on PATH")
    ] * 2
    assert check_job(SlurmStep()) == []
