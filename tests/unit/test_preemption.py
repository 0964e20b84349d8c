"""What becomes of a job after its training was saved, and the watch for signals."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest

from slurm_resolver.errors import ResumeError
from slurm_resolver.preemption.requeue import ExitPlan, job_end, job_id_for_scontrol, requeue_job
from slurm_resolver.preemption.signal_watch import SignalWatch
from slurm_resolver.slurm.step import SlurmStep

JOB = {"SLURM_JOB_ID": "42", "SLURM_RESTART_COUNT": "2"}
RUNNING = "JobId=42 JobName=a b JobState=RUNNING Reason=None Restarts=2 EndTime=1970-01-02T00:00:00"


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scontrol that shows what is in `state`, and notes its other commands in `calls`."""
    program = tmp_path / "scontrol"
    program.write_text(
        f'#!/bin/sh\n[ "$2" = show ] && exec cat {tmp_path}/state\n'
        f'echo "$@" >> {tmp_path}/calls\n[ ! -e {tmp_path}/refuses ] || {{ echo no; exit 1; }}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "state").write_text(RUNNING)
    return tmp_path


def calls(folder: Path) -> List[str]:
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


def step(**more: str) -> SlurmStep:
    return SlurmStep.read({**JOB, **more})


# what scontrol shows; status and wait; what is said; whether the job is requeued
STATES: Dict[str, Tuple[str, int, bool, str, bool]] = {
    "running": (RUNNING, 75, True, "job 42 requeued, restart 3", True),
    "at its limit": (
        "JobState=COMPLETING Reason=TimeLimit Restarts=2", 75, True, "requeued, restart 3", True,
    ),
    "requeued already": (
        "JobState=COMPLETING Reason=None Restarts=3", 75, False, "has been requeued already", False,
    ),
    "cancelled": (
        "JobState=COMPLETING Reason=None Restarts=2", 143, False, "is being cancelled", False,
    ),
    "not told": ("slurm_load_jobs error: Unable to contact", 75, True, "requeued", True),
}  # fmt: skip


@pytest.mark.parametrize("case", STATES)
def test_only_a_job_that_is_neither_cancelled_nor_requeued_is_requeued(
    scontrol: Path, case: str
) -> None:
    shown, status, wait, message, requeued = STATES[case]
    (scontrol / "state").write_text(shown)
    plan = requeue_job(step(), "scontrol", 100)
    assert (plan.status, plan.wait) == (status, wait)
    assert message in plan.message
    assert calls(scontrol) == ["requeue 42"] * requeued


def test_an_array_task_is_requeued_by_its_arrays_id(scontrol: Path) -> None:
    array = step(SLURM_ARRAY_JOB_ID="40", SLURM_ARRAY_TASK_ID="3")
    assert job_id_for_scontrol(array) == "40_3"
    assert requeue_job(array, "scontrol", None).wait
    assert calls(scontrol) == ["requeue 40_3"]


def test_where_the_requeue_is_refused_the_exit_status_asks_for_it(scontrol: Path) -> None:
    (scontrol / "refuses").touch()
    plan = requeue_job(step(), "scontrol", 100)
    assert (plan.status, plan.wait) == (75, False)
    assert (
        "not requeued (scontrol requeue 42: no); exit status 75 asks the batch file" in plan.message
    )


# requeue, max_restarts, restarts so far, status
WITHOUT_SCONTROL: List[Tuple[Optional[str], Optional[int], str, int]] = [
    ("exit-code", 100, "2", 75),
    ("exit-code", None, "2000", 75),
    ("exit-code", 2, "1", 75),
    ("exit-code", 2, "2", 1),
    ("scontrol", 2, "3", 1),
    ("scontrol", 0, "", 1),
    (None, 2, "2", 143),
]


@pytest.mark.parametrize(("requeue", "cap", "restarts", "status"), WITHOUT_SCONTROL)
def test_the_exit_status_where_scontrol_is_not_asked(
    scontrol: Path, requeue: Optional[str], cap: Optional[int], restarts: str, status: int
) -> None:
    plan = requeue_job(step(SLURM_RESTART_COUNT=restarts), requeue, cap)
    assert (plan.status, plan.wait) == (status, False)
    assert calls(scontrol) == []


def test_the_job_of_a_local_launcher_is_not_looked_for_in_slurm(scontrol: Path) -> None:
    """Its number may be that of somebody's real job."""
    (scontrol / "state").write_text("JobState=RUNNING EndTime=2026-11-21T04:38:05")
    plan = requeue_job(step(SLURM_RESOLVER_JOB="42"), "scontrol", 100)
    assert (plan.status, plan.wait) == (75, False)
    assert plan.message.endswith("asks slurm-resolver run to start the tasks again")
    assert job_end(step(SLURM_RESOLVER_JOB="42")) is None
    assert calls(scontrol) == []
    # a real step started from within such a task
    assert requeue_job(step(SLURM_RESOLVER_JOB="7"), "scontrol", 100).wait


def test_without_slurm_there_is_nothing_to_requeue() -> None:
    message = "exit status 75: start the program again to go on"
    assert requeue_job(SlurmStep(), "scontrol", 100) == ExitPlan(75, False, message)


def test_the_jobs_end_is_what_slurm_set_or_what_scontrol_tells(scontrol: Path) -> None:
    assert job_end(step(SLURM_JOB_END_TIME="1700000000")) == 1700000000.0
    end = job_end(step())
    assert end is not None
    assert abs(end - 86400) <= 14 * 3600  # midnight in this machine's time zone
    (scontrol / "state").write_text("JobState=RUNNING EndTime=Unknown")
    assert job_end(step()) is None


@pytest.mark.parametrize("names", [("USR1",), ("SIGNONE",), ("SIGKILL",), ("SIGUSR1", "SIGSTOP")])
def test_what_is_no_signal_is_an_error(names: Tuple[str, ...]) -> None:
    with pytest.raises(ResumeError, match=f"signals=.*{names[-1]}"):
        SignalWatch(names)


@pytest.fixture
def handlers() -> Any:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_signal_is_noted_and_later_sigterm_ends_the_wait(handlers: Any) -> None:
    watch = SignalWatch(["SIGUSR2", "SIGTERM"])
    watch.arm()
    os.kill(os.getpid(), signal.SIGUSR2)
    os.kill(os.getpid(), signal.SIGTERM)
    assert watch.received == "SIGUSR2"
    watch.leave_on_sigterm()
    assert not watch.ended
    os.kill(os.getpid(), signal.SIGUSR2)
    assert not watch.ended
    os.kill(os.getpid(), signal.SIGTERM)
    assert watch.ended


def test_outside_the_main_thread_it_says_so() -> None:
    errors: List[str] = []

    def arm() -> None:
        try:
            SignalWatch(["SIGUSR2"]).arm()
        except ResumeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=arm, name="other")
    thread.start()
    thread.join()
    assert "in the thread 'other'; expected the main thread" in errors[0]
