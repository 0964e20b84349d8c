"""What each worker is doing: finds stuck workers, and answers `slurm-resolver status`.

A worker is in a stage (training, validation), in an epoch and a step of it, and in a phase: what it
does there. It sends a `Report` of that every 5 s. Workers wait for each other in each step, so that
a stuck one stops all: a stall. When no step ends for too long, the service's `Monitor` tells all
tasks for which workers the others wait.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from slurm_resolver.coordination import NameOf, named
from slurm_resolver.coordination.tasks import Tasks
from slurm_resolver.coordination.wire import Message
from slurm_resolver.timeouts import Timeouts

# Phases. Those in _PATIENT may take longer than others, as they do on a good run.
IDLE = "outside of fit, evaluate and predict"
PREPARING = "preparing"
COMPILING = "compiling"
START = "in a callback, or at the start of its data"
FIRST = "in the first step"
DATA = "waiting for data"
STEP = "in the step"
CALLBACK = "in a callback"
SAVING = "saving"
MEETING = "waiting for the others"
_PATIENT = (
    PREPARING,
    COMPILING,
    FIRST,
    SAVING,
)
# stages; others are "evaluate" and "predict"
TRAINING = "training"
VALIDATION = "validation"

_MOST_TRACEBACKS = 8


class Report(NamedTuple):
    """The progress of a worker, as it reports it."""

    stage: str = ""  # "" outside of `fit`, `evaluate` and `predict`
    epoch: int = 0  # counted from 1
    step: int = 0  # counted from 1; 0 before the first one
    begun: int = 0  # the number of steps of all stages
    phase: str = IDLE
    age: float = 0.0  # seconds since the phase began
    ms: float = 0.0  # the median duration of a step; 0 if unknown
    silent: float = 0.0  # seconds since the report came; `age` includes them
    # This call of `fit`, or this loop: its epochs, its steps, and its seconds by cause (`usage`).
    epochs: int = 0
    steps: int = 0
    seconds: Mapping[str, float] = {}
    whole_data: str = ""  # why this worker produces all rows of the data, not only its own
    whole_steps: bool = False  # whether it computes whole batches
    gpu_memory: int = 0  # the most bytes that TensorFlow has allocated on one of its GPUs
    gpu_busy: float | None = None  # the mean share of the time in which its GPUs had work

    def where(self) -> str:
        """Returns the step it is in, such as "in step 812 of epoch 3"."""
        stages = {
            TRAINING: f"epoch {self.epoch}",
            VALIDATION: f"the validation of epoch {self.epoch}",
        }
        step = f"in step {self.step}" if self.step else "before step 1"
        return f"{step} of {stages.get(self.stage, self.stage)}"

    def does(self) -> str:
        """Returns what the worker does, such as "in step 811, saving"."""
        if self.phase in (IDLE, PREPARING) or not self.stage:
            return self.phase
        return self.where() if self.phase == STEP else f"{self.where()}, {self.phase}"


Reports = Mapping[int, Report]  # by rank


def report_seconds(limit: float) -> float:
    """Returns the seconds between two reports of a worker."""
    return min(Timeouts.report, limit / 4) if limit else Timeouts.report


def find_stall(workers: Reports, limit: float, name_of: NameOf) -> tuple[list[int], str]:
    """Returns the ranks that the others wait for if none has done anything for too long.

    They are those in the earliest step; all workers if that is unknown. With them, it returns the
    line that every task logs. Without a stall it returns [] and "".
    """
    reports = workers.values()
    phases = {report.phase for report in reports}
    if phases <= {IDLE}:
        return [], ""
    least = min(report.begun for report in reports)
    late = [rank for rank, report in workers.items() if report.begun == least]
    waits = {STEP, MEETING}
    if len(late) == len(workers) and phases - {IDLE, *waits}:
        waits.add(IDLE)
    behind = [rank for rank in late if workers[rank].phase not in waits] or late
    # An idle worker may prepare its data for long before a fit, but not while the others train.
    if phases == {IDLE, MEETING} or any(workers[rank].phase in _PATIENT for rank in behind):
        limit *= Timeouts.patience_factor
    seconds = min(report.age for report in reports)
    if seconds <= max(limit, *(report.ms / 100 for report in reports)):  # 10 steps
        return [], ""
    others = {rank: report.does() for rank, report in workers.items()}
    texts = {rank: others.pop(rank) for rank in behind}
    line = f"no step for {seconds:.0f} s: {'; '.join(named(texts, name_of, ' '))}"
    if others:
        line += f". The others wait: {'; '.join(named(others, name_of, ' '))}"
    elif len(behind) > 1 and {*texts.values()} == {workers[behind[0]].where()}:
        line += (
            ". They wait for each other in its collective operations: look at the network between "
            "their nodes (firewalls, the MTU), and at their GPUs (nvidia-smi, dmesg)"
        )
    return behind, line


class Monitor:
    """The service's knowledge of the workers; it runs in the service's thread."""

    # the seconds without a step that make a stall; 0 for never
    _limit = 0.0
    # when the present stall was last reported; without one, -inf
    _told_at = -inf

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        # by rank: when the last report came, and the report
        self._reports: dict[int, tuple[float, Report]] = {}

    def message(self, rank: int, message: Message) -> None:
        """Takes a worker's report."""
        self._limit = message["limit"]
        self._reports[rank] = (self._tasks.clock.now, Report(*message["progress"]))

    def ended(self, rank: int) -> None:
        """Forgets a worker."""
        self._reports.pop(rank, None)

    def describe(self, rank: int) -> str:
        """Returns how messages name a task's process, with what it has reported last."""
        link = self._tasks.links.get(rank)
        number = link.process.split()[0] if link else os.getpid()  # the service's own
        name = f"{self._tasks.name_of(rank)}, process {number}"
        _, report = self._reports.get(rank, (0.0, None))
        return f"{name}, last {report.does()}" if report else name

    def tick(self) -> None:
        """Reports a stall, and its end; called several times a second while all processes answer.

        What a silent process does is unknown; `silence` names it.
        """
        if not self._limit:
            return
        now = self._tasks.clock.now
        behind, line = find_stall(self._workers(), self._limit, self._tasks.name_of)
        if behind and now - self._told_at > Timeouts.stall_repeat:
            self._told_at = now
        elif not behind and self._told_at > -inf:
            self._told_at = -inf
            line = "steps advance again"
        else:
            return
        self._tasks.send(None, {"stall": line, "behind": behind[:_MOST_TRACEBACKS]})

    def status(self) -> list[Message]:
        """Returns what `slurm-resolver status` shows of each worker."""
        return [
            {"rank": rank, "name": self._tasks.name_of(rank), **report._asdict()}
            for rank, report in self._workers().items()
        ]

    def _workers(self) -> Reports:
        """Returns the last reports, with their ages by now."""
        now = self._tasks.clock.now
        return {
            rank: report._replace(age=round(report.age + now - at, 1), silent=round(now - at, 1))
            for rank, (at, report) in sorted(self._reports.items())
        }
