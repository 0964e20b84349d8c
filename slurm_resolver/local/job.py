"""A job on this machine: one step, started again where Slurm would requeue the job."""

from __future__ import annotations

import queue
import signal
from typing import Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.local.step import PREEMPT, LocalStep, StepOptions


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
    ) -> None:
        """Prepares the job; nothing is started yet.

        Args:
            print_line: prints a line for the user.
            progress: whether to print such a line when the tasks have started.
        """
        self._options = options
        self._requeue = requeue
        self._print_line = print_line
        self._progress = progress
        self._stopped = False
        # (rank, exit status) of a task that ended, (None, signal) of a signal to this process
        self._events: queue.SimpleQueue[Tuple[Optional[int], int]] = queue.SimpleQueue()

    def stop(self, number: signal.Signals) -> None:
        """Sends a signal to all tasks, and kills those that do not end. Safe in any thread."""
        self._stopped = True
        self._events.put((None, int(number)))

    def preempt(self) -> None:
        """Ends the tasks as a preemption does. Safe in any thread."""
        self._events.put((None, int(PREEMPT)))

    def run(self, environ: Mapping[str, str]) -> int:
        """Returns the exit status of the last start."""
        options = self._options
        if self._requeue.requeue:
            options = options._replace(requeue_statuses=self._requeue.statuses)
        restarts = 0
        while True:
            step = LocalStep(options, self._events, self._print_line)
            variables = step.start(environ, restarts, self._progress)
            if self._progress:
                self._print_line(_describe_start(variables))
            status, reason = step.wait()
            if reason is None or self._stopped:
                return status
            if not self._requeue.requeue:
                self._print_line("not started again: --requeue is not given")
                return status
            if restarts == self._requeue.max_restarts:
                self._print_line(f"not started again: {reason}, but --max-restarts is {restarts}")
                return status
            restarts += 1
            self._print_line(
                f"restart {restarts} of at most {self._requeue.max_restarts}: {reason}"
            )
            options = options._replace(preempt_after=None)


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
