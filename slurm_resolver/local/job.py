"""A job on this machine: a step, and others after it.

The job starts anew where Slurm would requeue it; and, if asked for, it starts a new step where one
has failed, as a batch file does that keeps its allocation.
"""

from __future__ import annotations

import queue
import signal
import time
from typing import Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.local.step import PREEMPT, LocalStep
from slurm_resolver.local.step_options import JobStart, StepOptions, StepResult


class RequeueOptions(NamedTuple):
    """Whether to start again, how often, and the exit statuses by which a task asks for it."""

    requeue: bool
    max_restarts: int
    statuses: Sequence[int]


class LocalJob:
    """Runs a step to its end, and starts it again as long as it has to be requeued."""

    def __init__(
        self,
        options: StepOptions,
        requeue: RequeueOptions,
        print_line: Callable[[str], None],
        progress: bool = False,
        restarts: int = 0,
        same_again: Optional[Callable[[int, int], bool]] = None,
    ) -> None:
        """Prepares the job; nothing is started yet.

        Args:
            print_line: prints a line for the user.
            progress: whether to print such a line when the tasks have started.
            restarts: how often at most a new step is started in the same job, after a failure.
            same_again: gets the rank and the exit status of the task that has failed, and tells
                whether the last step failed in the same way, so that none is started after it.
        """
        self._options = options
        self._requeue = requeue
        self._print_line = print_line
        self._progress = progress
        self._restarts = restarts
        self._same_again = same_again
        self._stopped = False
        # (rank, exit status) of a task that ended, (None, signal) of a signal to this process
        # (a SimpleQueue of Python 3.9 may wait for ever with a timeout of almost nothing)
        self._events: queue.Queue[Tuple[Optional[int], int]] = queue.Queue()

    def stop(self, number: signal.Signals) -> None:
        """Sends a signal to all tasks, and kills those that do not end. Safe in any thread."""
        self._stopped = True
        self._events.put((None, int(number)))

    def preempt(self) -> None:
        """Ends the tasks as a preemption does. Safe in any thread."""
        self._events.put((None, int(PREEMPT)))

    def forward(self, number: signal.Signals) -> None:
        """Sends a signal to all tasks, which may go on. Safe in any thread."""
        self._events.put((None, int(number)))

    def run(self, environ: Mapping[str, str]) -> int:
        """Returns the exit status of the last start."""
        options = self._options
        if self._requeue.requeue:
            options = options._replace(requeue_statuses=self._requeue.statuses)
        job = _start_job()
        first_failure = None
        while True:
            step = LocalStep(options, self._events, self._print_line)
            variables = step.start(environ, job, self._progress)
            if self._progress:
                self._print_line(_describe_start(variables))
            result = step.wait()
            if self._stopped:
                return result.status
            if result.requeue_reason is not None:
                if not self._may_requeue(result.requeue_reason, job.restarts):
                    return result.status
                job = _start_job(job.restarts + 1)
            elif result.failure is not None and result.status not in self._requeue.statuses:
                first_failure = first_failure or f"{result.failure} in step {job.steps}"
                if not self._may_restart(result, job.steps, first_failure):
                    return result.status
                job = job._replace(steps=job.steps + 1)
            else:
                return result.status
            options = options._replace(preemption=None, failure=None)

    def _may_requeue(self, reason: str, restarts: int) -> bool:
        most = self._requeue.max_restarts
        if not self._requeue.requeue:
            self._print_line("not started again: --requeue is not given")
        elif restarts == most:
            self._print_line(f"not started again: {reason}, but --max-restarts is {most}")
        else:
            self._print_line(f"restart {restarts + 1} of at most {most}: {reason}")
            return True
        return False

    def _may_restart(self, result: StepResult, steps: int, first_failure: str) -> bool:
        """Decides about a step that failed, in a job that goes on; nothing is said without."""
        if not self._restarts:
            return False
        failure = result.failure
        same = False
        if self._same_again is not None and result.failed is not None:
            same = self._same_again(*result.failed)
        if steps >= self._restarts:
            self._print_line(
                f"not started again: {failure}, but --restarts is {self._restarts}. The first "
                f"failure: {first_failure}"
            )
            return False
        if same:
            self._print_line(
                f"not started again: {failure}, and it was the same each time, without any "
                f"progress in between. The first failure: {first_failure}"
            )
            return False
        self._print_line(f"restart {steps + 1} of at most {self._restarts} (--restarts): {failure}")
        return True


def _start_job(restarts: int = 0) -> JobStart:
    return JobStart(time.time(), time.monotonic(), restarts)


def _describe_start(variables: Mapping[str, str]) -> str:
    count = int(variables["SLURM_STEP_NUM_TASKS"])
    tasks = "1 task" if count == 1 else f"{count} tasks"
    ports = [int(port) for port in variables["SLURM_STEP_RESV_PORTS"].split(",") if port]
    again = variables.get("SLURM_RESTART_COUNT")
    restart = f", restart {again}" if again else ""
    return f"{tasks} started (job {variables['SLURM_JOB_ID']}, ports {_port_list(ports)}{restart})"


def _port_list(ports: List[int]) -> str:
    if len(ports) > 1 and ports[-1] - ports[0] == len(ports) - 1:
        return f"{ports[0]}-{ports[-1]}"
    return ",".join(map(str, ports)) or "none"
