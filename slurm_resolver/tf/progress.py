"""Reports the epoch, step and phase of this worker's training to the coordination service.

Training code only writes attributes, which costs microseconds a step; a thread reads them, and
sends a report every few seconds. The words are those of `coordination.progress`: the *stage* is
what the worker was called for, such as the training or its validation; the *phase* is what it does
at the moment, such as waiting for data.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import Any

from slurm_resolver.coordination import progress as phases
from slurm_resolver.coordination.client import connect
from slurm_resolver.coordination.tcp import outlast_outages
from slurm_resolver.coordination.wire import Message
from slurm_resolver.log import exit_at_once, warn
from slurm_resolver.tf.resolver_cluster import cluster_of

_STALL_SECONDS = 300.0
# What the time of an epoch is spent with; else it is callbacks.
_SPENT_WITH = {
    phases.FIRST: "compilation",
    phases.COMPILING: "compilation",
    phases.STEP: "steps",
    phases.DATA: "data",
}


class Reporter:
    """What this process is doing; stage, phase, epoch, step and begun are as in `Report`."""

    stage = ""
    phase = phases.IDLE
    epoch = 0
    step = 0
    begun = 0
    _began = 0.0  # when the last step of this stage began; 0 before the first one
    _rank: int | None = None  # once it reports
    whole = False
    _exits = False  # once it is behind in a stall
    _steps = 0  # of this epoch
    _last_epoch: tuple[int, Mapping[str, float]] = 0, {}  # its steps, and what it was spent with

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._durations: deque[float] = deque(maxlen=101)
        # seconds of this epoch, or this call of `evaluate`
        self._spent: dict[str, float] = defaultdict(float)

    def begin_epoch(self, epoch: int) -> None:
        """Begins an epoch, counted from 1."""
        self.enter(phases.START, self.stage)
        self._end_epoch()
        self.epoch = epoch
        self.step = 0

    def _end_epoch(self) -> None:
        if self._steps:
            self._last_epoch = self._steps, dict(self._spent)
        self._steps = 0
        self._spent.clear()

    def enter(self, phase: str, stage: str | None = None) -> None:
        """Begins a phase; and a stage, unless that is None."""
        now = time.monotonic()
        self._count(self._spent, now)
        if stage is not None:
            if not stage or not self.stage:
                self._end_epoch()
            self.stage = stage
            self._began = 0.0
        self.phase = phase
        self._since = now

    def _count(self, spent: dict[str, float], now: float) -> None:
        """Counts what the time of this phase was spent with."""
        if self.stage == phases.VALIDATION:
            spent[phases.VALIDATION] += now - self._since
        elif self.stage:
            spent[_SPENT_WITH.get(self.phase, "callbacks")] += now - self._since

    def begin_step(self, steps: int = 1, phase: str = phases.STEP) -> None:
        """Begins a step, or several that are done at once."""
        self.begun += steps
        self._steps += steps if self.stage == phases.TRAINING else 0
        self.enter(phase)
        if self._began:
            self._durations.append((self._since - self._began) / steps)
        self._began = self._since

    def end_step(self) -> None:
        """Ends the step."""
        self.enter(phases.CALLBACK if self.stage else phases.IDLE)

    @contextlib.contextmanager
    def doing(self, phase: str) -> Iterator[None]:
        """Is in another phase in the block, such as SAVING."""
        before = self.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def where(self) -> str:
        """Returns the step that this process is in, such as "in step 812 of epoch 3", or ''."""
        return phases.Report(self.stage, self.epoch, self.step).where() if self.stage else ""

    def report(self) -> phases.Report:
        """Returns what this process is doing."""
        phase = self.phase
        since = self._since
        spent = defaultdict(float, self._spent)
        now = time.monotonic()
        self._count(spent, now)
        total = max(sum(spent.values()), 0.001)
        steps, seconds = self._last_epoch
        return phases.Report(
            stage=self.stage,
            epoch=self.epoch,
            step=self.step,
            begun=self.begun,
            phase=phase,
            age=now - since,
            ms=round(1000 * statistics.median(self._durations or [0.0]), 3),
            waiting=round(spent["data"] / total, 3),
            outside=round(spent["callbacks"] / total, 3),
            steps=steps,
            seconds=seconds,
            whole=self.whole,
        )

    def start(self, resolver: Any, on_stall: str | None = None) -> None:
        """Begins to report, if this process is one of several workers of a live step.

        With "exit", a process that is behind in a stall ends; None leaves that as it is. Raises
        ValueError for another `on_stall`.
        """
        if on_stall not in (None, "report", "exit"):
            raise ValueError(f'on_stall={on_stall!r}: expected "report" or "exit".')
        cluster = cluster_of(resolver)
        if not cluster or not cluster.service or not cluster.step.is_live or len(cluster.tasks) < 2:
            return
        seconds = cluster.step.stall_seconds
        self._limit = _STALL_SECONDS if seconds is None else float(seconds)
        if on_stall:
            self._exits = on_stall == "exit"
        if self._rank is not None:
            return
        client = connect(cluster.service, cluster.name_of)
        self._rank = client.address.rank
        client.listen("stall", self._take_stall)
        ends = threading.Event()
        port = int(cluster.tasks[self._rank].address.rpartition(":")[2])

        def run() -> None:
            while not ends.wait(phases.report_seconds(self._limit)):
                outlast_outages(port, 2 * client.address.silence)
                client.say(
                    "progress",
                    progress=list(self.report()),
                    limit=self._limit,
                )

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        # The thread calls TensorFlow, which fails once Python has ended. The last one comes first.
        atexit.register(thread.join, 1.0)
        atexit.register(ends.set)

    def _take_stall(self, message: Message) -> None:
        warn("%s", message["stall"])
        if self._rank in message["behind"]:
            faulthandler.dump_traceback(2, all_threads=True)
            if self._exits:
                warn("this task ends with status 1 (on_stall='exit')")
                exit_at_once()


reporter = Reporter()


def noting(iterator: Iterator[Any]) -> Iterator[Any]:
    """Yields the items of an iterator; while it waits for one, the phase is DATA."""
    reporter.enter(phases.DATA)
    for batch in iterator:
        reporter.enter(phases.STEP)
        yield batch
        reporter.enter(phases.DATA)
    reporter.enter(phases.STEP)
