"""What becomes of a job whose training was saved because its end is near: requeued, or not.

`scontrol requeue` ends a running job and puts it back into the queue, under its own id. It would
bring a cancelled job back as well, so the job's state is looked at first:

    JobState=RUNNING                              preempted, or a signal from somebody: requeue
    JobState=COMPLETING, Reason=TimeLimit         at its time limit: requeue
    JobState=COMPLETING, more Restarts than ours  requeued already: by preemption, or by hand
    JobState=COMPLETING otherwise                 cancelled: leave it so
"""

from __future__ import annotations

import time
from typing import NamedTuple, Optional

from slurm_resolver.errors import ResumeError
from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.step import SlurmStep

# EX_TEMPFAIL of sysexits.h: try again later.
REQUEUE_STATUS = 75
# As a shell reports a process that SIGTERM ended.
TERMINATED_STATUS = 143
CAPPED_STATUS = 1

_SECONDS = 60.0  # that scontrol itself waits for a busy controller


class ExitPlan(NamedTuple):
    """How all tasks exit: at once with `status`, or (`wait`) when Slurm ends them."""

    status: int
    wait: bool
    message: str


def check_options(requeue: Optional[str], max_restarts: Optional[int]) -> None:
    """Raises ResumeError for what `requeue_job` would not understand."""
    if requeue not in ("scontrol", "exit-code", None):
        raise ResumeError(f"requeue={requeue!r}: expected 'scontrol', 'exit-code' or None.")
    if max_restarts is not None and (isinstance(max_restarts, bool) or max_restarts < 0):
        raise ResumeError(f"max_restarts={max_restarts!r}: expected a count, or None for no limit.")


def requeue_job(step: SlurmStep, requeue: Optional[str], max_restarts: Optional[int]) -> ExitPlan:
    """Requeues the job where that is asked for, and returns how its tasks end.

    One task of the step calls it, after the save.
    """
    restarts = step.restart_count or 0
    if requeue is None:
        return ExitPlan(TERMINATED_STATUS, False, "ending, without a requeue (requeue=None)")
    if max_restarts is not None and restarts >= max_restarts:
        return ExitPlan(
            CAPPED_STATUS,
            False,
            f"not requeued: SLURM_RESTART_COUNT={restarts} has reached max_restarts={max_restarts}."
            " The checkpoint is kept: submit the job again to go on",
        )
    job = job_id_for_scontrol(step)
    if job is None:
        again = f"exit status {REQUEUE_STATUS}: start the program again to go on"
        return ExitPlan(REQUEUE_STATUS, False, again)
    if step.simulated:  # scontrol could find a real job with this number, and requeue that
        again = f"exit status {REQUEUE_STATUS} asks slurm-resolver run to start the tasks again"
        return ExitPlan(REQUEUE_STATUS, False, again)
    left = f"exit status {REQUEUE_STATUS} asks the batch file to requeue job {job}"
    if requeue == "exit-code":
        return ExitPlan(REQUEUE_STATUS, False, left)
    if not scontrol.is_available():
        return ExitPlan(REQUEUE_STATUS, False, f"scontrol is not on this task's PATH; {left}")
    try:
        state = scontrol.show_job(job, _SECONDS)
    except OSError:
        state = {}
    if int(state.get("Restarts", "0")) > restarts:
        return ExitPlan(REQUEUE_STATUS, False, f"job {job} has been requeued already")
    if state.get("JobState") not in ("RUNNING", None) and state.get("Reason") != "TimeLimit":
        return ExitPlan(TERMINATED_STATUS, False, f"job {job} is being cancelled: not requeued")
    try:
        scontrol.scontrol("requeue", job, timeout=_SECONDS)
    except OSError as error:
        return ExitPlan(REQUEUE_STATUS, False, f"not requeued ({error}); {left}")
    return ExitPlan(REQUEUE_STATUS, True, f"job {job} requeued, restart {restarts + 1}")


def job_id_for_scontrol(step: SlurmStep) -> Optional[str]:
    """Returns the job as scontrol wants it: an array's task by its array's id, as ``12_3``."""
    if step.array_job_id is not None and step.array_task_id is not None:
        return f"{step.array_job_id}_{step.array_task_id}"
    return step.job_id


def job_end(step: SlurmStep) -> Optional[float]:
    """Returns the time when the job reaches its limit, in seconds since 1970; None if unknown."""
    if step.job_end_time is not None:
        return float(step.job_end_time)
    job = job_id_for_scontrol(step)
    if job is None or step.simulated or not scontrol.is_available():
        return None
    try:
        end = scontrol.show_job(job, _SECONDS).get("EndTime", "")
        return time.mktime(time.strptime(end, "%Y-%m-%dT%H:%M:%S"))
    except (OSError, ValueError):  # "Unknown", for a job without a limit
        return None
