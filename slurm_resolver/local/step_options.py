"""What is asked of a step on this machine, and how it has ended."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.errors import LaunchError
from slurm_resolver.local.output import Listen, OutputOptions
from slurm_resolver.local.planned_preemption import PlannedPreemption
from slurm_resolver.slurm.time_limit import LimitSignal


class PlannedFailure(NamedTuple):
    """A task that is killed, and so many seconds after the start of its step."""

    seconds: float
    rank: int


class StepOptions(NamedTuple):
    """What the user asks of a step; the times are in seconds.

    Attributes:
        cpus: those of each task; None where tasks are not bound.
        variables: further variables of all tasks.
        task_variables: further variables of each task; empty for none.
        removed_variables: variables of the launcher that its tasks do not get.
        limit_signal: the signal that the tasks get before the time limit.
        requeue_statuses: the exit statuses by which a task asks to be started again.
        failure: a task that is killed to see what happens.
        wait_for_children: whether a task lasts until all that it has started has ended.
        listen: gets each line that the tasks print, as `Output` takes it.
    """

    command: Sequence[str]
    num_tasks: int = 1
    cpus_per_task: Optional[int] = None
    job_name: Optional[str] = None
    directory: Optional[str] = None
    cpus: Optional[Sequence[Sequence[int]]] = None
    variables: Mapping[str, str] = {}
    task_variables: Sequence[Mapping[str, str]] = ()
    removed_variables: Sequence[str] = ()
    output: OutputOptions = OutputOptions()
    time_limit: Optional[int] = None
    limit_signal: Optional[LimitSignal] = None
    preemption: Optional[PlannedPreemption] = None
    failure: Optional[PlannedFailure] = None
    kill_on_bad_exit: bool = True
    requeue_statuses: Sequence[int] = ()
    wait_for_children: bool = False
    listen: Optional[Listen] = None


class StepResult(NamedTuple):
    """How a step ended.

    Attributes:
        status: its exit status.
        requeue_reason: why it has to be started again; None where it has not.
        failure: which task failed first, and how; None where none did, or all were told to end.
        failed: the rank and the exit status of that task.
    """

    status: int
    requeue_reason: Optional[str] = None
    failure: Optional[str] = None
    failed: Optional[Tuple[int, int]] = None


class JobStart(NamedTuple):
    """A start of a job, which may have several steps.

    Attributes:
        started: when, in seconds since 1970.
        clock: the same by the clock that nobody sets, in seconds.
        restarts: how often it was requeued before.
        steps: how many steps it has had before.
    """

    started: float
    clock: float
    restarts: int = 0
    steps: int = 0


def planned_failure(text: Optional[str], num_tasks: int) -> Optional[PlannedFailure]:
    """Reads ``S[:RANK]``; without a rank it is the last task. None stays None.

    Raises:
        LaunchError: for another text, or a rank that no task has.
    """
    if text is None:
        return None
    seconds, colon, rank = text.partition(":")
    try:
        failure = PlannedFailure(float(seconds), int(rank) if colon else num_tasks - 1)
    except ValueError:
        failure = PlannedFailure(-1, 0)
    if not (0 <= failure.seconds < float("inf") and 0 <= failure.rank < num_tasks):
        raise LaunchError(
            f"--fail-after {text!r}: expected seconds from 0 on, and a rank from 0 to "
            f"{num_tasks - 1}, as 20:{num_tasks - 1}"
        )
    return failure
