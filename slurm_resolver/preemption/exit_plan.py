"""Requeues a job whose training was saved because its end is near, if that is asked for.

`scontrol requeue` ends a running job and puts it back into the queue, with the same id. It would
requeue a cancelled job as well, so this looks first at what `scontrol show job` prints. The first
line that fits decides (measured on live clusters; SIGNALING is RUNNING during a signal):

    Restarts has grown       requeued already, by preemption or by a user
    JobState=COMPLETING      cancelled, unless Reason=TimeLimit: do not requeue
    PreemptTime is set       preempted: requeue, unless Slurm does (below)
    JobState=RUNNING         somebody has sent a signal: requeue

If the state cannot be read, the job may have been cancelled. Then the tasks' exit status asks the
batch file for the requeue; a cancelled job no longer has one.

A job that is preempted with a GraceTime gets SIGTERM (or the signal of --signal), and has that time
to end by itself. With PreemptMode=CANCEL, Slurm never requeues it. With PreemptMode=REQUEUE, this
happens if its batch file ends then (live on 22.05, 24.11 and 26.05, and from slurmctld's source):

    up to 23.11    the job has FAILED; `scontrol requeue` starts it again, as it should
    from 24.05 on  Slurm starts it again. After `scontrol requeue`, up to 25.11, Slurm would take
                   the job for preempted at its next end too, and start it once too often
"""

from __future__ import annotations

import time
from contextlib import suppress
from math import inf
from typing import Callable, NamedTuple

from slurm_resolver.errors import ResumeError
from slurm_resolver.signals import MAX_RESTARTS_STATUS, REQUEUE_STATUS, TERMINATED_STATUS
from slurm_resolver.slurm.scontrol import (
    RUNNING_STATES,
    Fields,
    forbid_requeue,
    is_preempted,
    own_job,
    run_on,
    show_config,
    show_preempt_mode,
)
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.slurm.whole_number import whole_number

_FIRST_THAT_REQUEUES = "24.05"  # the version of slurmctld; years and months have two digits

# For all commands together: scontrol would wait 60 s for each answer of a busy controller. Slurm's
# KillWait is 30 s by default, and a signal before the time limit may leave less.
_MOST_SECONDS = 20.0
_LEAST_SECONDS = 2.0

Clock = Callable[[], float]  # returns the seconds that are left for commands


class ExitPlan(NamedTuple):
    """How all tasks of the step exit.

    Attributes:
        status: the exit status.
        message: the reason, for the log.
        wait: seconds to wait until Slurm ends the tasks; after them they exit by themselves.
    """

    status: int
    message: str
    wait: float = 0.0


def check_options(requeue: str | None, max_restarts: int | None) -> None:
    """Checks the arguments of `requeue_job`; raises ResumeError for a wrong one."""
    if requeue not in ("scontrol", "exit-code", None):
        raise ResumeError(f"requeue={requeue!r}: expected 'scontrol', 'exit-code' or None.")
    if max_restarts is not None and whole_number(max_restarts) is None:
        raise ResumeError(f"max_restarts={max_restarts!r}: expected a count, or None for no limit.")


def requeue_job(
    step: SlurmStep,
    requeue: str | None,
    max_restarts: int | None,
    *,
    announced: bool = True,
    saved: int = 1,
) -> ExitPlan:
    """Requeues the job if the arguments ask for it, and returns how its tasks exit.

    One task of the step calls it, after the training was saved.

    If SIGTERM alone comes to a job that Slurm neither preempts nor ends, another task of the step
    may have failed: `srun --kill-on-bad-exit`, and Slurm's PMIx from 26.05 on, then end the others
    by SIGTERM. If not all tasks have saved together, the job is not requeued: it could fail and
    start again without end.

    Args:
        step: the task's variables.
        requeue: "scontrol", "exit-code" (exit with `REQUEUE_STATUS`, for the batch file) or None.
        max_restarts: after how many restarts the job is no longer requeued; None for no limit.
        announced: whether another signal than SIGTERM has announced the end.
        saved: how many tasks have saved together.
    """
    restarts = step.restart_count or 0
    seconds_left = _start_clock(step)
    job = step.job_label
    problem = ""
    if requeue is None:
        return ExitPlan(TERMINATED_STATUS, "ending, without a requeue (requeue=None)")
    is_last = max_restarts is not None and restarts >= max_restarts
    if is_last and job and not step.simulated:
        with suppress(OSError):
            job_ref, slurm_job = own_job(step, seconds_left())
            # The variable may be that of the job which has submitted this one.
            is_last = int(slurm_job.get("Restarts", restarts)) >= (max_restarts or 0)
            if is_last:  # Slurm itself may requeue it
                forbid_requeue(job_ref, seconds_left())
    if is_last:
        return ExitPlan(
            MAX_RESTARTS_STATUS,
            f"not requeued: SLURM_RESTART_COUNT={restarts} has reached max_restarts={max_restarts}"
            ". The checkpoint is kept: submit the job again to resume",
        )
    if not job or step.simulated:  # scontrol might requeue a real job with the same id
        return ExitPlan(
            REQUEUE_STATUS,
            f"exit status {REQUEUE_STATUS} asks to start the program again",
        )
    if requeue == "scontrol":
        try:
            others = 0 if announced else (step.num_tasks or 1) - saved
            return _requeue_in_slurm(step, restarts, others, seconds_left)
        except (OSError, KeyError, ValueError) as error:  # of Slurm, or of what it prints
            problem = f"not requeued ({error}); "
    return ExitPlan(
        REQUEUE_STATUS,
        f"{problem}exit status {REQUEUE_STATUS} leaves job {job} to be requeued, by the batch file "
        "or with scontrol",
    )


def _start_clock(step: SlurmStep) -> Clock:
    # All commands together may take a quarter of the time until the job's end.
    quarter = ((step.job_end_time or inf) - time.time()) / 4
    until = time.monotonic() + min(_MOST_SECONDS, max(_LEAST_SECONDS, quarter))
    return lambda: until - time.monotonic()


def _requeue_in_slurm(step: SlurmStep, restarts: int, others: int, seconds_left: Clock) -> ExitPlan:
    """Requeues the job if its state allows it; it was restarted `restarts` times before.

    `others` is how many tasks of a step that received SIGTERM alone did not save.

    Raises:
        OSError, KeyError, ValueError: if Slurm does not answer as expected.
    """
    job, slurm_job = own_job(step, seconds_left())
    is_running = slurm_job["JobState"] in RUNNING_STATES
    preempted = is_preempted(slurm_job)
    if int(slurm_job.get("Restarts", "0")) > restarts:
        return ExitPlan(REQUEUE_STATUS, f"job {job} has been requeued already")
    if not is_running and slurm_job.get("Reason") != "TimeLimit":
        return ExitPlan(TERMINATED_STATUS, f"job {job} is being cancelled: not requeued")
    if others > 0 and is_running and not preempted:
        return ExitPlan(
            TERMINATED_STATUS,
            f"job {job} not requeued: this step received SIGTERM, but Slurm is neither preempting "
            f"nor ending the job, and {others} of its step's {step.num_tasks} tasks did not save, "
            "one of which may have failed. Let Slurm announce the job's end by SIGUSR1 (#SBATCH "
            "--signal=USR1@120)",
        )
    if preempted and _slurm_requeues(slurm_job, seconds_left):
        # The signal ends the batch file's shell.
        run_on(job, "scancel", "--batch", "--signal=TERM", timeout=seconds_left())
        return ExitPlan(
            TERMINATED_STATUS,  # does not ask the batch file for another requeue
            f"job {job} is preempted, and Slurm requeues it, restart {restarts + 1}",
            wait=5.0,
        )
    run_on(job, "scontrol", "requeue", timeout=seconds_left())
    return ExitPlan(
        REQUEUE_STATUS,
        f"job {job} requeued, restart {restarts + 1}",
        wait=60.0,
    )


def _slurm_requeues(slurm_job: Fields, seconds_left: Clock) -> bool:
    """Whether Slurm itself requeues this job (`show_job`), which it preempts."""
    config = show_config(seconds_left())
    may_be_requeued = slurm_job.get("Requeue") == slurm_job.get("BatchFlag") == "1"
    # the controller's version; the commands may be those of another one
    if not may_be_requeued or config.get("SLURM_VERSION", "") < _FIRST_THAT_REQUEUES:
        return False
    what = ["partition", slurm_job.get("Partition", "")]
    if config.get("PreemptType") == "preempt/qos":
        what = ["assoc_mgr", f"qos={slurm_job.get('QOS', '')}", "flags=qos"]
    mode = show_preempt_mode(*what, timeout=seconds_left())
    if mode == "OFF":  # the cluster's counts
        mode = config.get("PreemptMode", "OFF")
    return "REQUEUE" in mode.split(",")
