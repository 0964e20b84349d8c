"""Whether a step that has failed is started again, and if not, why."""

from __future__ import annotations

import signal
import threading
import time
from typing import List, Mapping, NamedTuple, Optional, Sequence

from slurm_resolver.preemption.preempted import is_preempted
from slurm_resolver.preemption.requeue import REQUEUE_STATUS, TERMINATED_STATUS
from slurm_resolver.slurm import scontrol
from slurm_resolver.supervision.batch_host import is_lost
from slurm_resolver.supervision.failure import Failure
from slurm_resolver.supervision.step_output import TaskOutput

# A step that ran for longer has made progress, even if its output does not say so.
PROGRESS_SECONDS = 600.0


class Stop(NamedTuple):
    """Why nothing is started again, and whether a requeue of the job would help."""

    why: str
    requeue: bool = False


class Attempt(NamedTuple):
    """A start of the step that has failed: why, after how many seconds, and on which nodes."""

    failure: Failure
    seconds: float
    nodes: Sequence[str] = ()


def is_error(status: int) -> bool:
    """Whether a task that exits so has failed, and was not just saved before its end."""
    return status not in (0, REQUEUE_STATUS, TERMINATED_STATUS)


def same_again(attempts: Sequence[Attempt]) -> bool:
    """Whether the last two attempts failed in the same way, without progress in between.

    The checkpoint from which the training continued shows progress; without one the time that the
    last attempt took does.
    """
    if len(attempts) < 2:
        return False
    before, last = attempts[-2], attempts[-1]
    if not last.failure.is_same(before.failure) or last.failure.kind == "node":
        return False
    if last.failure.progress is not None or before.failure.progress is not None:
        return last.failure.progress == before.failure.progress
    return last.seconds <= PROGRESS_SECONDS


def give_up_reason(failure: Failure) -> Optional[Stop]:
    """Returns why no start could help after this failure; None where one could."""
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
        least_time: how many seconds before the time limit a start is still worth it.
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


class LocalFailures:
    """The failures of a local job's steps; it listens to what the tasks print."""

    def __init__(self) -> None:
        self._attempts: List[Attempt] = []
        self._lock = threading.Lock()
        self._begin_step()

    def _begin_step(self) -> None:
        self._output, self._all_heard, self._begun = TaskOutput(), True, time.monotonic()

    def listen(self, rank: Optional[int], stream: str, line: bytes) -> None:
        """Takes a line that a task has printed, as `Output` passes it. Safe in any thread."""
        with self._lock:
            self._all_heard = self._all_heard and stream != "unknown"
            self._output.read(rank, stream, line.decode(errors="replace"))

    def same_again(self, rank: int, status: int) -> bool:
        """Whether the step that this task ends failed as the one before it.

        Where the output could not be read, the answer is no.
        """
        number = next((one for one in signal.Signals if 128 + one == status), None)
        name = None if number is None else number.name
        failure = Failure("task", status, time.time(), rank, "localhost", name)
        with self._lock:
            failure = self._output.describe(failure)
            self._attempts.append(Attempt(failure, time.monotonic() - self._begun))
            heard = self._all_heard
            self._begin_step()
        return heard and same_again(self._attempts)
