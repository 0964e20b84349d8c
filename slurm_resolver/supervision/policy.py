"""Whether and on which nodes a failed step is started again.

Slurm removes a node that fails from the node list of a job with --no-kill. A node that is drained
or does not answer stays in the list, and only its state shows it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_resolver.slurm.scontrol import RUNNING_STATES, Fields, end_time, is_preempted
from slurm_resolver.supervision.step import StepFailure

# A step that ran for longer has made progress, even if its output does not say so.
PROGRESS_SECONDS = 600.0
# The states (`scontrol.show_nodes`) of a node that cannot start tasks. MAINT, RESERVED and
# REBOOT_REQUESTED let a job that runs there continue. In older versions, a star means that the node
# does not respond.
UNHEALTHY = re.compile(
    "(^|[+])("
    "DOWN"
    "|DRAIN"
    "|FAIL"
    "|ERROR"
    "|UNKNOWN"
    "|FUTURE"
    "|NOT_RESPONDING"
    "|INVALID_REG"
    "|REBOOT_ISSUED"
    "|POWER"
    ")"
    "|[*]([+]|$)",
    re.IGNORECASE,
)


@dataclass
class NoRestartError(Exception):
    """Why the step is not started again, and whether a requeue of the job would help."""

    why: str
    requeue: bool = False


def same_again(failures: Sequence[StepFailure]) -> bool:
    """Whether the last two starts failed in the same way, without progress in between.

    The checkpoint from which the training resumed shows progress. If the output names none, a long
    run counts as progress.
    """
    if len(failures) < 2:
        return False
    before, last = failures[-2:]
    if last.kind == "node" or last.error != before.error:
        return False
    if last.progress or before.progress:
        return last.progress == before.progress
    return last.seconds <= PROGRESS_SECONDS


def stop_if_job_ends(slurm_job: Fields, restarts: int, least_time: float, now: float) -> None:
    """Raises NoRestartError if Slurm is about to end a job (`scontrol.show_job`).

    The job had been requeued `restarts` times when its batch file started. From `now` on,
    `least_time` seconds must be left until its time limit.
    """
    state = slurm_job.get("JobState", "gone")
    if state not in RUNNING_STATES:
        raise NoRestartError(f"the job is {state}")
    if slurm_job.get("Restarts", "0") not in ("0", str(restarts)):
        raise NoRestartError("the job has been requeued")
    if is_preempted(slurm_job):
        raise NoRestartError("Slurm is preempting the job", requeue=True)
    end = end_time(slurm_job)
    if end and end - now < least_time:
        raise NoRestartError(f"the time limit is {max(0, end - now):.0f} s away", requeue=True)
