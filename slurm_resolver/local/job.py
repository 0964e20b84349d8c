"""A job on this machine: one step, started again where Slurm would requeue it."""

from __future__ import annotations

import queue
import signal
from typing import Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.local.step import PREEMPT, LocalStep, StepOptions

MAX_RESTARTS = 5  # Slurm's own default (MaxBatchRequeue)
REQUEUE_EXIT = 75  # "temporary failure; the user is invited to retry" of sysexits.h


class RequeueOptions(NamedTuple):
    """Whether to start again, how often, and the exit statuses by which a task asks for it."""

    requeue: bool = False
    max_restarts: int = MAX_RESTARTS
    exits: Sequence[int] = (REQUEUE_EXIT,)


class LocalJob:
    """Runs a step to its end, and again as long as it is to be requeued."""

    def __init__(
        self,
        options: StepOptions,
        requeue: RequeueOptions,
        say: Callable[[str], None],
        progress: bool = False,
    ) -> None:
        """Takes how to tell the user, and whether to tell that the tasks have started."""
        self._options = options
        self._requeue = requeue
        self._say = say
        self._progress = progress
        self._stopped = False
        # Signals to this process and ends of tasks.
        self._events: queue.SimpleQueue[Tuple[Optional[int], int]] = queue.SimpleQueue()

    def stop(self, number: signal.Signals) -> None:
        """Passes a signal to all tasks; those that go on are killed. Safe in any thread."""
        self._stopped = True
        self._events.put((None, int(number)))

    def preempt(self) -> None:
        """Ends the tasks as a preemption does. Safe in any thread."""
        self._events.put((None, int(PREEMPT)))

    def run(self, environ: Mapping[str, str]) -> int:
        """Returns the exit status of the last start."""
        options = self._options
        if self._requeue.requeue:
            options = options._replace(requeue_exits=self._requeue.exits)
        restarts = 0
        while True:
            step = LocalStep(options, self._events, self._say)
            common = step.start(environ, restarts, self._progress)
            if self._progress:
                self._say(_started(common))
            status, reason = step.wait()
            if reason is None or self._stopped:
                return status
            if not self._requeue.requeue:
                self._say("not started again: --requeue is not given")
                return status
            if restarts == self._requeue.max_restarts:
                self._say(f"not started again: {reason}, but --max-restarts is {restarts}")
                return status
            restarts += 1
            self._say(f"restart {restarts} of at most {self._requeue.max_restarts}: {reason}")
            options = options._replace(preempt_after=None)


def _started(common: Mapping[str, str]) -> str:
    count = int(common["SLURM_STEP_NUM_TASKS"])
    tasks = "1 task" if count == 1 else f"{count} tasks"
    ports = _compressed([int(port) for port in common["SLURM_STEP_RESV_PORTS"].split(",") if port])
    again = common.get("SLURM_RESTART_COUNT")
    restart = f", restart {again}" if again else ""
    return f"{tasks} started (job {common['SLURM_JOB_ID']}, ports {ports}{restart})"


def _compressed(ports: List[int]) -> str:
    if len(ports) > 1 and ports[-1] - ports[0] == len(ports) - 1:
        return f"{ports[0]}-{ports[-1]}"
    return ",".join(map(str, ports)) or "none"
