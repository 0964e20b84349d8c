"""Requeues a job whose training was saved because its end is near, if that is asked for.

`scontrol requeue` ends a running job and puts it back into the queue, with the same id. It would
requeue a cancelled job as well, so that the job's state is asked for first. These are the states
of `scontrol show job`, measured on live clusters:

    JobState=RUNNING                         preempted, or somebody has sent a signal: requeue
    JobState=COMPLETING, Reason=TimeLimit    at its time limit: requeue
    JobState=COMPLETING, Restarts has grown  requeued already, by preemption or by a user
    JobState=COMPLETING otherwise            cancelled: do not requeue
"""

from __future__ import annotations

import time
from typing import NamedTuple, Optional

from slurm_resolver.errors import ResumeError
from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.step import SlurmStep

REQUEUE_STATUS = 75  # EX_TEMPFAIL of sysexits.h: try again later
TERMINATED_STATUS = 143  # as a shell reports a process that SIGTERM has ended
MAX_RESTARTS_STATUS = 1

_TIMEOUT_SECONDS = 60.0  # scontrol itself waits as long for a busy controller


class ExitPlan(NamedTuple):
    """How all tasks of the step exit.

    Attributes:
        status: the exit status.
        wait: whether to wait until Slurm ends the tasks; otherwise they exit at once.
        message: the reason, for the log.
    """

    status: int
    wait: bool
    message: str


def check_options(requeue: Optional[str], max_restarts: Optional[int]) -> None:
    """Checks the arguments of `requeue_job`; raises ResumeError for a wrong one."""
    if requeue not in ("scontrol", "exit-code", None):
        raise ResumeError(f"requeue={requeue!r}: expected 'scontrol', 'exit-code' or None.")
    if max_restarts is not None and (isinstance(max_restarts, bool) or max_restarts < 0):
        raise ResumeError(f"max_restarts={max_restarts!r}: expected a count, or None for no limit.")


def requeue_job(step: SlurmStep, requeue: Optional[str], max_restarts: Optional[int]) -> ExitPlan:
    """Requeues the job if the arguments ask for it, and returns how its tasks exit.

    One task of the step calls it, after the training was saved.

    Args:
        step: the task's variables.
        requeue: "scontrol", "exit-code" (exit with `REQUEUE_STATUS`, for the batch file) or None.
        max_restarts: after how many restarts the job is no longer requeued; None for no limit.
    """
    restarts = step.restart_count or 0
    if requeue is None:
        return ExitPlan(TERMINATED_STATUS, False, "ending, without a requeue (requeue=None)")
    if max_restarts is not None and restarts >= max_restarts:
        return ExitPlan(
            MAX_RESTARTS_STATUS,
            False,
            f"not requeued: SLURM_RESTART_COUNT={restarts} has reached max_restarts={max_restarts}."
            " The checkpoint is kept: submit the job again to go on",
        )
    job_id = job_id_for_scontrol(step)
    if job_id is None:
        message = f"exit status {REQUEUE_STATUS}: start the program again to go on"
        return ExitPlan(REQUEUE_STATUS, False, message)
    if step.simulated:  # scontrol might requeue a real job with the same id
        message = f"exit status {REQUEUE_STATUS} asks slurm-resolver run to start the tasks again"
        return ExitPlan(REQUEUE_STATUS, False, message)
    ask_batch_file = f"exit status {REQUEUE_STATUS} asks the batch file to requeue job {job_id}"
    if requeue == "exit-code":
        return ExitPlan(REQUEUE_STATUS, False, ask_batch_file)
    if not scontrol.is_available():
        message = f"scontrol is not on this task's PATH; {ask_batch_file}"
        return ExitPlan(REQUEUE_STATUS, False, message)
    try:
        job = scontrol.show_job(job_id, _TIMEOUT_SECONDS)
    except OSError:
        job = {}
    if int(job.get("Restarts", "0")) > restarts:
        return ExitPlan(REQUEUE_STATUS, False, f"job {job_id} has been requeued already")
    if job.get("JobState") not in ("RUNNING", None) and job.get("Reason") != "TimeLimit":
        return ExitPlan(TERMINATED_STATUS, False, f"job {job_id} is being cancelled: not requeued")
    try:
        scontrol.scontrol("requeue", job_id, timeout=_TIMEOUT_SECONDS)
    except OSError as error:
        return ExitPlan(REQUEUE_STATUS, False, f"not requeued ({error}); {ask_batch_file}")
    return ExitPlan(REQUEUE_STATUS, True, f"job {job_id} requeued, restart {restarts + 1}")


def job_id_for_scontrol(step: SlurmStep) -> Optional[str]:
    """Returns the job's id as scontrol takes it: ``12_3`` for task 3 of the job array 12."""
    if step.array_job_id is not None and step.array_task_id is not None:
        return f"{step.array_job_id}_{step.array_task_id}"
    return step.job_id


def job_end(step: SlurmStep) -> Optional[float]:
    """Returns when the job reaches its time limit, in seconds since 1970; None if unknown."""
    if step.job_end_time is not None:
        return float(step.job_end_time)
    job_id = job_id_for_scontrol(step)
    if job_id is None or step.simulated or not scontrol.is_available():
        return None
    try:
        end = scontrol.show_job(job_id, _TIMEOUT_SECONDS).get("EndTime", "")
        return time.mktime(time.strptime(end, "%Y-%m-%dT%H:%M:%S"))
    except (OSError, ValueError):  # "Unknown", for a job without a limit
        return None
