"""What Slurm says about requeue and preemption, and what `check` makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Optional

import pytest
from pytest_mock import MockerFixture

from slurm_resolver.preflight import job_checks
from slurm_resolver.preflight.job_checks import JobSettings, check_job_settings
from slurm_resolver.slurm.step import SlurmStep

CONFIG = {"JobRequeue": "1", "KillWait": "30 sec", "PreemptMode": "OFF", "RequeueExit": "(null)"}
JOB = {"JobId": "42", "BatchFlag": "1", "Requeue": "1", "Restarts": "2"}
BATCH = "#!/bin/sh\n#SBATCH -N2 --signal=USR1@120  # 2 min\nsrun true\n#SBATCH --signal=B:X\n"
STEP = {"SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0"}


def results(
    mocker: MockerFixture,
    config: Optional[Dict[str, str]] = None,
    job: Optional[Dict[str, str]] = None,
    batch_file: Optional[str] = BATCH,
    **variables: str,
) -> Dict[str, str]:
    """By id, "status: detail" where Slurm says these things besides what it says above."""
    said = JobSettings({**CONFIG, **(config or {})}, {**JOB, **(job or {})}, batch_file)
    mocker.patch.object(job_checks, "ask_slurm", return_value=said)
    step = SlurmStep.read({**STEP, **variables})
    return {id: f"{status}: {detail}" for id, status, detail in check_job_settings(step)}


@pytest.mark.parametrize(
    ("id", "config", "job", "expected"),
    [
        ("requeue", {}, {}, "ok: job 42 may be requeued, and has been 2 times"),
        ("requeue", {"RequeueExit": "75"}, {}, "exit status 75 requeues a job here (RequeueExit)"),
        (
            "requeue",
            {},
            {"Requeue": "0"},
            "warning: job 42 may not be requeued, but its tasks get a signal to save",
        ),
        ("requeue", {}, {"BatchFlag": "0"}, "skipped: job 42 has no batch file"),
        ("preemption", {}, {}, "ok: jobs are not preempted here (PreemptMode=OFF); SIGKILL"),
        ("preemption", {"PreemptMode": "REQUEUE"}, {}, "gets SIGTERM, not the signal of --signal;"),
        (
            "preemption",
            {"PreemptMode": "REQUEUE", "PreemptParameters": "youngest_first,send_user_signal"},
            {},
            "gets the signal of --signal, then SIGTERM; SIGKILL follows SIGTERM after 30 sec",
        ),
        (
            "preemption",
            {"PreemptMode": "REQUEUE", "SlurmctldParameters": "preempt_send_user_signal"},
            {},
            "gets the signal of --signal, then SIGTERM;",
        ),
        ("signal", {}, {}, "ok: --signal=USR1@120 reaches the tasks"),
        ("log", {}, {}, "warning: a restarted job overwrites its output"),
        ("log", {"JobFileAppend": "1"}, {}, "ok: a restarted job appends"),
    ],
)
def test_rules(
    mocker: MockerFixture, id: str, config: Dict[str, str], job: Dict[str, str], expected: str
) -> None:
    assert expected in results(mocker, config, job)[id]


@pytest.mark.parametrize(
    ("batch_file", "expected"),
    [
        (None, "skipped: no batch file"),
        ("#!/bin/sh\nsrun true\n", "ok: the batch file has no --signal"),
        ("#!/bin/sh\nsrun true\n#SBATCH --signal=USR1\n", "ok: the batch file has no"),
        ("#!/bin/sh\n#SBATCH --signal USR1\n", "ok: --signal=USR1 reaches the tasks"),
        ("#!/bin/sh\n#SBATCH --signal=B:USR1@60\n", "warning: --signal=B:USR1@60 reaches the"),
        ("#SBATCH --signal=B:USR1@60\ntrap 'x 75' USR1\n", "ok: --signal=B:USR1@60 reaches the"),
        ("#SBATCH --signal=B:10@60\ntrap 'x 75' USR1\n", "ok: --signal=B:10@60 reaches the batch"),
        ("#SBATCH --signal=B:X@60\ntrap 'x' USR1\n", "warning: --signal=B:X@60 reaches the batch"),
        ("#SBATCH --signal=B:USR1@60\ntrap 'x 75' USR2\n", "warning: --signal=B:USR1@60 reaches"),
    ],
)
def test_the_batch_files_signal(
    mocker: MockerFixture, batch_file: Optional[str], expected: str
) -> None:
    assert results(mocker, batch_file=batch_file)["signal"].startswith(expected)


# What stands in the batch file, SLURM_OPEN_MODE, whether Slurm may requeue the job, and what is
# warned of. A job that asks for nothing of that is not told to.
WARNED = [
    ("", "", "1", ""),
    ("", "", "0", ""),
    ("--open-mode=append", "a", "0", ""),
    ("--no-requeue", "", "0", ""),
    ("--requeue", "", "1", "signal log"),
    ("--requeue --open-mode=append", "a", "1", "signal"),
    ("--signal=USR1@60", "", "1", "log"),
    ("--signal=USR1@60", "", "0", "requeue"),
    ("--signal=USR1@60 --no-requeue", "", "0", ""),
    ("--requeue --signal=USR1@60 --open-mode=append", "a", "1", ""),
]


@pytest.mark.parametrize(("options", "open_mode", "requeue", "warned"), WARNED)
def test_only_a_job_that_asks_to_go_on_is_warned(
    mocker: MockerFixture, options: str, open_mode: str, requeue: str, warned: str
) -> None:
    text = f"#!/bin/sh\n#SBATCH -N2 {options}\nsrun true\n"
    found = results(
        mocker, job={"Requeue": requeue}, batch_file=text, SLURM_OPEN_MODE=open_mode or "t"
    )
    assert [id for id in found if found[id].startswith("warning")] == warned.split()


def test_an_appended_log(mocker: MockerFixture) -> None:
    assert results(mocker, SLURM_OPEN_MODE="a")["log"].startswith("ok")
    assert results(mocker, batch_file=None)["log"].startswith("skipped")


@pytest.mark.parametrize(
    ("scontrol", "expected"),
    [
        (None, "scontrol is not on this process's PATH"),
        ("exec sleep 60", "scontrol did not answer within 0.5 s"),
        ("echo Unable to contact slurm controller >&2; exit 1", "Unable to contact slurm"),
    ],
)
def test_a_slurm_that_does_not_answer(
    scontrol: Optional[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if scontrol is not None:
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{scontrol}\n")
        (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = check_job_settings(SlurmStep.read(STEP), timeout=0.5)
    assert [id for id, _, _ in found] == ["requeue", "preemption", "signal", "log"]
    assert {status for _, status, _ in found} == {"skipped"}
    assert all(expected in detail for _, _, detail in found)
    outside_a_job = check_job_settings(SlurmStep(), timeout=0.5)
    assert [id for id, _, _ in outside_a_job] == ["requeue", "preemption"]
