"""What becomes of a job after its training was saved, and the watch for signals."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

import pytest

from slurm_resolver.errors import ResumeError
from slurm_resolver.preemption.requeue import requeue_job
from slurm_resolver.preemption.signal_watch import SignalWatch
from slurm_resolver.slurm.step import SlurmStep

JOB = {"SLURM_JOB_ID": "42", "SLURM_RESTART_COUNT": "2"}
RUNNING = """\
JobId=42 JobName=a JobState=FAILED
   JobState=RUNNING Reason=None
   Requeue=1 Restarts=2 BatchFlag=1
   StartTime=1970-01-01T00:00:00 EndTime=1970-01-02T00:00:00
   SubmitLine=sbatch job JobState=FAILED Restarts=9
   StdOut=/home/u/my runs/x.out JobState=FAILED
"""


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scontrol that shows what is in the files `job`, `config`, `partition` and `assoc_mgr`.

    It notes its other commands in `calls`, as scancel does, and refuses those that `refuses` names.
    """
    for name in ("scontrol", "scancel"):
        program = tmp_path / name
        program.write_text(
            f'#!/bin/sh\n[ "$1" != show ] || exec cat "{tmp_path}/$2"\n'
            f'echo "$@" >> {tmp_path}/calls\n'
            f'[ ! -e "{tmp_path}/refuses-$1" ] || {{ echo no; exit 1; }}\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "job").write_text(RUNNING)
    return tmp_path


def calls(folder: Path) -> List[str]:
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


def step(**more: str) -> SlurmStep:
    return SlurmStep.read({**JOB, **more})


# by job state, reason and restarts: status and wait; what is said; whether the job is requeued
STATES: Dict[Tuple[str, str, str], Tuple[int, bool, str, bool]] = {
    ("RUNNING", "None", "2"): (75, True, "job 42 requeued, restart 3", True),
    ("SIGNALING", "None", "2"): (75, True, "job 42 requeued, restart 3", True),
    ("COMPLETING", "TimeLimit", "2"): (75, True, "job 42 requeued, restart 3", True),
    ("COMPLETING", "None", "3"): (75, False, "job 42 has been requeued already", False),
    ("COMPLETING", "None", "2"): (143, False, "job 42 is being cancelled", False),
    ("RUNNING", "None", "N/A"): (75, True, "job 42 requeued, restart 3", True),
}


@pytest.mark.parametrize("state", STATES)
def test_only_a_job_that_is_neither_cancelled_nor_requeued_is_requeued(
    scontrol: Path, state: Tuple[str, str, str]
) -> None:
    status, wait, message, requeued = STATES[state]
    job_state, reason, restarts = state
    shown = RUNNING.replace(
        "   JobState=RUNNING Reason=None", f"   JobState={job_state} Reason={reason}"
    )
    (scontrol / "job").write_text(shown.replace(" Restarts=2 ", f" Restarts={restarts} "))
    plan = requeue_job(step(), "scontrol", 100)
    assert (plan.status, bool(plan.wait)) == (status, wait)
    assert message in plan.message
    assert calls(scontrol) == ["requeue 42"] * requeued


PREEMPTED = (
    "JobId=42\n   QOS=low\n   JobState=RUNNING\n   Requeue=1 Restarts=2 BatchFlag=1\n"
    "   PreemptEligibleTime=2026-11-22T03:22:51 PreemptTime=2026-11-22T03:22:53\n   Partition=p\n"
)
REQUEUE = "24.11.5 partition_prio REQUEUE REQUEUE"
# the job; the controller's version, PreemptType, PreemptMode of the cluster, and of the job's
# partition or QOS; whether Slurm requeues the job by itself
REQUEUES: Dict[str, Tuple[str, str, bool]] = {
    "23.11": (PREEMPTED, "23.11.10 partition_prio REQUEUE REQUEUE", False),
    "24.05": (PREEMPTED, "24.05.0-0rc1 partition_prio REQUEUE REQUEUE", True),
    "not yet preempted": (PREEMPTED.replace("2026-11-22T03:22:53", "None"), REQUEUE, False),
    "may not be requeued": (PREEMPTED.replace("Requeue=1", "Requeue=0"), REQUEUE, False),
    "of no batch file": (PREEMPTED.replace("BatchFlag=1", "BatchFlag=0"), REQUEUE, False),
    "a partition that cancels": (PREEMPTED, "24.11.5 partition_prio REQUEUE CANCEL", False),
    "a partition that requeues": (PREEMPTED, "24.11.5 partition_prio CANCEL GANG,REQUEUE", True),
    "a QOS that requeues": (PREEMPTED, "24.11.5 qos CANCEL REQUEUE", True),
    "a QOS that cancels": (PREEMPTED, "24.11.5 qos REQUEUE CANCEL", False),
    "a QOS that sets nothing": (PREEMPTED, "24.11.5 qos REQUEUE OFF", True),
    "an unknown version": (PREEMPTED, "? partition_prio REQUEUE REQUEUE", False),
}


def show(folder: Path, case: str) -> None:
    """Makes scontrol show what the table has for a case."""
    version, preempt_type, cluster, own = REQUEUES[case][1].split()
    (folder / "job").write_text(REQUEUES[case][0])
    (folder / "config").write_text(
        f"PreemptMode             = {cluster}\nPreemptType             = preempt/{preempt_type}\n"
        f"SLURM_VERSION           = {version}\n"
    )
    of_qos, of_partition = (own, "SUSPEND") if preempt_type == "qos" else ("SUSPEND", own)
    (folder / "assoc_mgr").write_text(f"QOS Records\n\nQOS=low(3)\n    PreemptMode={of_qos}\n")
    (folder / "partition").write_text(f"PartitionName=p\n   PreemptMode={of_partition} State=UP\n")


@pytest.mark.parametrize("case", REQUEUES)
def test_a_job_that_slurm_requeues_by_itself_is_left_to_it(scontrol: Path, case: str) -> None:
    show(scontrol, case)
    plan = requeue_job(step(), "scontrol", 100)
    by_slurm = REQUEUES[case][-1]
    if by_slurm:
        assert (plan.status, bool(plan.wait)) == (143, True)
        assert plan.message == "job 42 is preempted, and Slurm requeues it, restart 3"
        assert calls(scontrol) == ["--batch --signal=TERM 42"]
    else:
        assert (plan.status, bool(plan.wait)) == (75, True)
        assert calls(scontrol) == ["requeue 42"]


@pytest.mark.parametrize(
    ("shown", "forbidden"),
    [(PREEMPTED, True), (RUNNING, False), (f"{RUNNING}   ExpeditedRequeue=Yes\n", True)],
)
@pytest.mark.parametrize("requeue", ["scontrol", "exit-code"])
def test_beyond_the_cap_slurm_neither_requeues_nor_holds_the_job(
    scontrol: Path, shown: str, forbidden: bool, requeue: str
) -> None:
    show(scontrol, "24.05")
    (scontrol / "job").write_text(shown)
    assert requeue_job(step(), requeue, 2)[:2] == (1, 0)
    assert calls(scontrol) == ["update JobId=42 Requeue=0"] * forbidden


# what scontrol shows; whether another signal than SIGTERM came; tasks, and how many have saved;
# whether the job is requeued
FAILED_PEER: Dict[str, Tuple[str, bool, int, int, bool]] = {
    "may have failed": (RUNNING, False, 3, 2, False),
    "has saved as well": (RUNNING, False, 3, 3, True),
    "is there none": (RUNNING, False, 1, 1, True),
    "announced": (RUNNING, True, 3, 1, True),
    "preempted": (PREEMPTED, False, 3, 1, True),
    "at its limit": ("JobState=COMPLETING Reason=TimeLimit", False, 3, 1, True),
}


@pytest.mark.parametrize("case", FAILED_PEER)
def test_a_sigterm_because_of_another_task_does_not_requeue_the_job(
    scontrol: Path, case: str
) -> None:
    shown, announced, tasks, saved, requeued = FAILED_PEER[case]
    show(scontrol, "23.11")
    (scontrol / "job").write_text(shown)
    own = step(SLURM_STEP_NUM_TASKS=str(tasks), SLURM_PROCID="0")
    plan = requeue_job(own, "scontrol", 100, announced=announced, saved=saved)
    assert (plan.status, bool(plan.wait)) == ((75, True) if requeued else (143, False))
    assert calls(scontrol) == ["requeue 42"] * requeued
    if not requeued:
        assert "1 of its step's 3 tasks did not save, one of which may have" in plan.message


@pytest.mark.parametrize("unreadable", ["job", "partition"])
def test_where_the_state_cannot_be_read_the_exit_status_asks_for_the_requeue(
    scontrol: Path, unreadable: str
) -> None:
    show(scontrol, "24.05")
    (scontrol / unreadable).unlink()
    plan = requeue_job(step(), "scontrol", 100)
    assert (plan.status, plan.wait) == (75, 0)
    assert f"(scontrol show {unreadable} " in plan.message
    assert plan.message.endswith("exit status 75 asks the batch file to requeue job 42")
    assert calls(scontrol) == []


@pytest.mark.parametrize(("left", "seconds"), [(None, 20), (40, 10), (-5, 2)])
def test_a_controller_that_hangs_takes_no_longer_than_it_may(
    scontrol: Path, monkeypatch: pytest.MonkeyPatch, left: Optional[int], seconds: int
) -> None:
    """All commands together; the first takes three quarters of the time."""
    now = [1000.0]

    def command(program: str, *arguments: str, timeout: float) -> str:
        if arguments[0] == "show":
            now[0] += 0.75 * timeout
            return RUNNING
        now[0] += timeout
        raise OSError(f"{program} did not answer within {timeout:g} s")

    monkeypatch.setattr("slurm_resolver.slurm.scontrol.run", command)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    end = {} if left is None else {"SLURM_JOB_END_TIME": str(int(time.time()) + left)}
    plan = requeue_job(step(**end), "scontrol", 100)
    assert (plan.status, plan.wait) == (75, 0)
    assert "did not answer within" in plan.message
    assert now[0] - 1000 == pytest.approx(seconds, abs=0.5)


def test_an_array_task_is_requeued_by_its_arrays_id(scontrol: Path) -> None:
    assert requeue_job(
        step(SLURM_ARRAY_JOB_ID="40", SLURM_ARRAY_TASK_ID="3"), "scontrol", None
    ).wait
    assert calls(scontrol) == ["requeue 40_3"]


# what Slurm refuses, with which controller; exit status, and the message
REFUSED = {
    "requeue": ("23.11", 75, "not requeued (scontrol requeue 42: no); exit status 75 asks the"),
    "--batch": ("24.05", 143, "when its batch file ends, which has to be now (scancel --batch"),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_if_slurm_refuses_the_tasks_exit_at_once(scontrol: Path, refused: str) -> None:
    version, status, message = REFUSED[refused]
    show(scontrol, version)
    (scontrol / f"refuses-{refused}").touch()
    plan = requeue_job(step(), "scontrol", 100)
    assert (plan.status, plan.wait) == (status, 0)
    assert message in plan.message


# requeue, max_restarts, restarts so far, status
WITHOUT_SCONTROL: List[Tuple[Optional[str], Optional[int], str, int]] = [
    ("exit-code", 100, "2", 75),
    ("exit-code", None, "2000", 75),
    ("exit-code", 2, "2", 1),
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
    plan = requeue_job(step(SLURM_RESOLVER_JOB="42"), "scontrol", 100)
    assert (plan.status, plan.wait) == (75, False)
    assert plan.message.endswith("asks slurm-resolver run to start the tasks again")
    assert calls(scontrol) == []
    # a real step started from within such a task
    assert requeue_job(step(SLURM_RESOLVER_JOB="7"), "scontrol", 100).wait
    assert requeue_job(SlurmStep(), "scontrol", 100).status == 75  # without Slurm


@pytest.mark.parametrize("names", [("USR1",), ("SIGNONE",), ("SIGKILL",), ("SIGUSR1", "SIGSTOP")])
def test_what_is_no_signal_is_an_error(names: Tuple[str, ...]) -> None:
    with pytest.raises(ResumeError, match=f"signals=.*{names[-1]}"):
        SignalWatch(names)


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_signal_is_noted_and_later_sigterm_ends_the_wait(handlers: None) -> None:
    watch = SignalWatch(["SIGUSR2", "SIGTERM"])
    watch.arm()
    os.kill(os.getpid(), signal.SIGUSR2)
    os.kill(os.getpid(), signal.SIGTERM)
    assert watch.received == "SIGUSR2"
    watch.leave_on_sigterm()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert not watch.ended
    os.kill(os.getpid(), signal.SIGTERM)
    assert watch.ended


def forked_child(number: int) -> Optional[int]:
    """Sends a signal to a child that is forked, wakes it up, and returns its exit status."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child() -> None:
        theirs.send("begun")
        theirs.recv()

    process = context.Process(target=child)
    process.start()
    assert ours.recv() == "begun"
    assert process.pid is not None
    os.kill(process.pid, number)
    ours.send("wake up")
    process.join(60)
    return process.exitcode


def test_a_child_that_is_forked_can_be_ended_and_hears_no_announcement(handlers: None) -> None:
    watch = SignalWatch(["SIGUSR2", "SIGTERM"])
    watch.arm()
    assert forked_child(signal.SIGTERM) == -signal.SIGTERM
    assert forked_child(signal.SIGUSR2) == 0
    assert watch.received is None
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what others have installed stays
    assert forked_child(signal.SIGTERM) == 0


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
