"""The end of a job after its training has saved, and the watch for signals."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from captured import Patch
from programs_on_path import stand_ins
from slurm_jobs import read, wait_for

from slurm_resolver.errors import ResumeError
from slurm_resolver.preemption.exit_plan import requeue_job
from slurm_resolver.preemption.signal_watch import SignalWatch
from slurm_resolver.slurm.step_variables import SlurmStep

JOB = {"SLURM_JOB_ID": "42", "SLURM_RESTART_COUNT": "2"}
RUNNING = """\
JobId=42 JobName=a JobState=FAILED
   JobState=RUNNING Reason=None
   Requeue=1 Restarts=2 BatchFlag=1
   StartTime=1970-01-01T00:00:00 EndTime=1970-01-02T00:00:00
   SubmitLine=sbatch job JobState=FAILED Restarts=9
   StdOut=/home/u/my runs/x.out JobState=FAILED
"""
PROGRAM = """\
#!/bin/sh
here=${0%/*}
[ "$1" != show ] || exec cat "$here/$2"
echo "$@" >> "$here/calls"
[ ! -e "$here/refuses-$1" ] || { echo no; exit 1; }
"""


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A scontrol that shows the files `job`, `config`, `partition` and `assoc_mgr`.

    It and scancel log other commands in `calls`, and refuse a command if `refuses-COMMAND` exists.
    """
    monkeypatch.setenv("PATH", stand_ins(tmp_path, PROGRAM, "scontrol", "scancel"))
    (tmp_path / "job").write_text(RUNNING)
    return tmp_path


def step(**more: str) -> SlurmStep:
    return SlurmStep.read({**JOB, **more})


PREEMPTED = (
    "JobId=42\n   QOS=low\n   JobState=RUNNING\n   Requeue=1 Restarts=2 BatchFlag=1\n"
    "   PreemptEligibleTime=2026-11-22T03:22:51 PreemptTime=2026-11-22T03:22:53\n   Partition=p\n"
)


def running(state: str) -> str:
    return RUNNING.replace("   JobState=RUNNING", f"   {state}", 1)


class Case(NamedTuple):
    """A job that has saved.

    Attributes:
        job: the job in the output of scontrol; None if Slurm does not answer.
        status: the exit status of the tasks.
        message: a part of the message.
        calls: the commands for Slurm.
        config: the controller's version, PreemptType, and PreemptMode of the cluster and of the
                job's partition or QOS.
        options: requeue, max_restarts.
        tasks: the number of tasks of the step, and how many have saved.
        announced: whether a signal other than SIGTERM came.
        variables: variables of the step.
        refuses: the command that Slurm refuses.
    """

    job: str | None
    status: int
    message: str
    calls: Sequence[str] = ()
    config: str = "24.11.5 partition_prio REQUEUE REQUEUE"
    options: tuple[str | None, int | None] = ("scontrol", 100)
    tasks: tuple[int, int] = (1, 1)
    announced: bool = True
    variables: Mapping[str, str] = {}
    refuses: str = ""


REQUEUED = (
    75,
    "job 42 requeued, restart 3",
    ["requeue 42"],
)
BY_SLURM = (
    143,
    "job 42 is preempted, and Slurm requeues it",
    ["--batch --signal=TERM 42"],
)
ASKS = "exit status 75 leaves job 42 to be requeued, by the batch file or with scontrol"
BEYOND = (
    1,
    "has reached max_restarts",
    ["update JobId=42 Requeue=0"],
)
OLD = "23.11.10 partition_prio REQUEUE REQUEUE"
LOCAL = "exit status 75 asks to start the program again"
CASES = {
    "running": Case(RUNNING, *REQUEUED),
    "signalled": Case(running("JobState=SIGNALING"), *REQUEUED),
    "at its limit": Case(running("JobState=COMPLETING Reason=TimeLimit"), *REQUEUED),
    "requeued": Case(running("JobState=COMPLETING Restarts=3"), 75, "has been requeued already"),
    "cancelled": Case(running("JobState=COMPLETING"), 143, "job 42 is being cancelled"),
    # preempted: does Slurm requeue the job by itself?
    "23.11": Case(PREEMPTED, *REQUEUED, OLD),
    "24.05": Case(PREEMPTED, *BY_SLURM, "24.05.0-0rc1 partition_prio REQUEUE REQUEUE"),
    "may not be requeued": Case(PREEMPTED.replace("Requeue=1", "Requeue=0"), *REQUEUED),
    "without a batch file": Case(PREEMPTED.replace("BatchFlag=1", "BatchFlag=0"), *REQUEUED),
    "a partition that requeues": Case(
        PREEMPTED, *BY_SLURM, "24.11.5 partition_prio CANCEL GANG,REQUEUE"
    ),
    "a QOS that requeues": Case(PREEMPTED, *BY_SLURM, "24.11.5 qos CANCEL REQUEUE"),
    "a QOS that sets nothing": Case(PREEMPTED, *BY_SLURM, "24.11.5 qos REQUEUE OFF"),
    # SIGTERM alone: has another task failed?
    "a task may have failed": Case(
        RUNNING, 143, "1 of its step's 3 tasks did not save, one of which may have failed",
        tasks=(3, 2), announced=False,
    ),
    "all have saved": Case(RUNNING, *REQUEUED, tasks=(3, 3), announced=False),
    "announced": Case(RUNNING, *REQUEUED, tasks=(3, 1)),
    "preempted by SIGTERM": Case(PREEMPTED, *REQUEUED, OLD, tasks=(3, 1), announced=False),
    # Slurm does not answer, or refuses
    "no answer": Case(None, 75, ASKS),
    "no requeue": Case(
        RUNNING, 75, f"not requeued (scontrol requeue 42: no); {ASKS}", ["requeue 42"],
        refuses="requeue",
    ),
    "no end of the batch file": Case(
        PREEMPTED, 75, "not requeued (scancel --batch --signal=TERM 42: no); exit status 75",
        BY_SLURM[2], refuses="--batch",
    ),
    # options and variables
    "exit-code": Case(RUNNING, 75, ASKS, options=("exit-code", None)),
    "no requeue wanted": Case(RUNNING, 143, "without a requeue", options=(None, 2)),
    "beyond the restarts": Case(RUNNING, *BEYOND, options=("exit-code", 2)),
    "beyond no restarts": Case(
        RUNNING, *BEYOND, options=("scontrol", 0), variables={"SLURM_RESTART_COUNT": ""}
    ),
    "a task of an array": Case(
        running("ArrayJobId=40 ArrayTaskId=3 JobState=RUNNING"), 75, "job 40_3 requeued",
        ["requeue 40_3"],
    ),
    # A real job of another user may have the same number.
    "a job of slurm-resolver run": Case(
        RUNNING, 75, LOCAL, variables={"SLURM_RESOLVER_JOB": "42"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_how_tasks_that_have_saved_exit(scontrol: Path, name: str) -> None:
    case = CASES[name]
    version, preempt_type, mode, own = case.config.split()
    of_qos, of_partition = (own, "SUSPEND") if preempt_type == "qos" else ("SUSPEND", own)
    shown = {
        "job": case.job,
        "config": f"PreemptMode = {mode}\nPreemptType = preempt/{preempt_type}\n"
        f"SLURM_VERSION = {version}\n",
        "assoc_mgr": f"QOS Records\n\nQOS=low(3)\n    PreemptMode={of_qos}\n",
        "partition": f"PartitionName=p\n   PreemptMode={of_partition} State=UP\n",
    }
    (scontrol / "job").unlink()
    for what, text in shown.items():
        if text is not None:
            (scontrol / what).write_text(text)
    (scontrol / f"refuses-{case.refuses}").touch()
    tasks, saved = case.tasks
    plan = requeue_job(
        step(
            **{
                "SLURM_STEP_NUM_TASKS": str(tasks),
                "SLURM_PROCID": "0",
                **case.variables,
            }
        ),
        *case.options,
        announced=case.announced,
        saved=saved,
    )
    assert plan.status == case.status
    assert case.message in plan.message
    assert read(scontrol / "calls").splitlines() == list(case.calls)
    waits = not case.refuses and any("requeue" in call or "TERM" in call for call in case.calls)
    assert bool(plan.wait) == waits


@pytest.mark.parametrize(
    ("left", "seconds", "max_restarts", "status", "told"),
    [
        (None, 20, 100, 75, "did not answer within"),
        (40, 10, 100, 75, "did not answer within"),
        (-5, 2, 100, 75, "did not answer within"),
        (-5, 2, 2, 1, "has reached max_restarts=2"),
    ],
)
def test_all_commands_together_take_no_longer_than_they_may(
    monkeypatch: Patch,
    left: int | None,
    seconds: int,
    max_restarts: int,
    status: int,
    told: str,
) -> None:
    now = [1000.0]

    def command(program: str, *arguments: str, timeout: float) -> str:
        shows = arguments[0] == "show"
        now[0] += max(0.0, 0.75 * timeout if shows else timeout)
        if shows:
            return RUNNING
        raise OSError(f"{program} did not answer within {timeout:g} s")

    monkeypatch.setattr("shutil.which", lambda program: program)
    monkeypatch.setattr("slurm_resolver.slurm.scontrol._run", command)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    plan = requeue_job(
        step(**{} if left is None else {"SLURM_JOB_END_TIME": str(int(time.time()) + left)}),
        "scontrol",
        max_restarts,
    )
    assert (plan.status, plan.wait) == (status, 0)
    assert told in plan.message
    assert now[0] - 1000 == pytest.approx(seconds, abs=0.5)


@pytest.mark.parametrize(
    "names",
    [
        ("USR1",),
        ("SIGKILL",),
        ("SIGUSR1", "SIGSTOP"),
    ],
)
def test_what_is_no_signal_is_an_error(names: tuple[str, ...]) -> None:
    with pytest.raises(ResumeError, match=f"signals=.*{names[-1]}"):
        SignalWatch(names)


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    yield
    # The thread that gets them may still have to: without a handler they end this process.
    wait_for(lambda: not signal.sigpending())
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_signal_is_noted_and_later_sigterm_ends_the_wait(handlers: None) -> None:
    watch = SignalWatch(["SIGUSR2", "SIGTERM"])
    watch.arm()
    os.kill(os.getpid(), signal.SIGUSR2)
    wait_for(lambda: watch.received is not None)  # another thread gets it
    os.kill(os.getpid(), signal.SIGTERM)
    assert watch.received == "SIGUSR2"
    watch.leave_on_sigterm()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert not watch.ended
    os.kill(os.getpid(), signal.SIGTERM)
    assert watch.ended


def forked_child(number: int) -> int | None:
    """Sends a signal to a forked child, wakes it up, and returns its exit status."""
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
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # handlers of others stay
    assert forked_child(signal.SIGTERM) == 0
