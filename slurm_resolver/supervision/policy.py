"""Whether a step that has failed is started again, and if not, why."""

from __future__ import annotations

import time
from typing import Mapping, NamedTuple, Optional, Sequence

from slurm_resolver.preemption.preempted import is_preempted
from slurm_resolver.preemption.requeue import REQUEUE_STATUS, TERMINATED_STATUS
from slurm_resolver.slurm import scontrol
from slurm_resolver.supervision.batch_host import is_lost
from slurm_resolver.supervision.failure import Failure

# A step that ran for longer has got on, also where its output does not say how far.
PROGRESS_SECONDS = 600.0


class Stop(NamedTuple):
    """Why nothing is started again, and whether it would help to requeue the job."""

    why: str
    requeue: bool = False


class Attempt:
    """A start of the step that has failed: why, after how many seconds, and on which nodes."""

    def __init__(self, failure: Failure, seconds: float, nodes: Sequence[str]) -> None:
        self.failure, self.seconds, self.nodes = failure, seconds, tuple(nodes)


def is_error(status: int) -> bool:
    """Whether a task that exits so has failed, and has not just been saved before its end."""
    return status not in (0, REQUEUE_STATUS, TERMINATED_STATUS)


def same_again(attempts: Sequence[Attempt]) -> bool:
    """Whether the last two attempts have failed in the same way, and nothing was won in between.

    What the training said when it went on from a checkpoint tells whether it got on; else the time
    that the last one took.
    """
    if len(attempts) < 2:
        return False
    before, last = attempts[-2], attempts[-1]
    if not last.failure.is_same(before.failure) or last.failure.kind == "node":
        return False
    if last.failure.progress is not None or before.failure.progress is not None:
        return last.failure.progress == before.failure.progress
    return last.seconds <= PROGRESS_SECONDS


def why_not_again(failure: Failure) -> Optional[Stop]:
    """Returns why no start could help after this failure alone; None where one could."""
    if failure.kind == "cancelled" and failure.cause is not None:
        return Stop(f"Slurm has ended the step: {failure.cause}")
    if failure.kind == "cancelled":
        return Stop("somebody has cancelled the step")
    if failure.kind == "task" and failure.signal is None and not is_error(failure.status):
        saved = "the training was ended by a signal, or has saved and asks for a requeue"
        return Stop(f"exit status {failure.status}: {saved}")
    return None


def job_is_ending(
    job: Mapping[str, str], restarts: int, least_time: float, now: float
) -> Optional[Stop]:
    """Returns why Slurm is about to end the job; None where it is not.

    Args:
        job: the job's fields (`scontrol.show_job`).
        restarts: how often the job had been requeued when its batch file started.
        least_time: seconds to the time limit that a start is worth.
        now: seconds since 1970.
    """
    state = job.get("JobState", "")
    if state not in scontrol.RUNNING_STATES:
        return Stop(f"the job is {state or 'gone'}")
    if job.get("Restarts", "0") not in ("0", str(restarts)):
        return Stop("the job has been requeued")
    if is_preempted(dict(job)):
        return Stop("Slurm preempts the job", requeue=True)
    if is_lost(job):
        return Stop(f"the job has lost {job['BatchHost']}, this node", requeue=True)
    try:
        end = time.mktime(time.strptime(job.get("EndTime", ""), "%Y-%m-%dT%H:%M:%S"))
    except ValueError:  # "Unknown", for a job without a limit
        return None
    if end - now < least_time:
        return Stop(f"the time limit comes in {max(0, end - now):.0f} s", requeue=True)
    return None
