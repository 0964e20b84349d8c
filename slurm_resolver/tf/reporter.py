"""Reports the epoch, step and phase of this worker's training to the coordination service.

Training code only writes attributes, which costs microseconds a step; a thread reads them, and
sends a report every few seconds. The words are those of `coordination.progress`: the *stage* is
what the worker was called for, such as the training or its validation; the *phase* is what it does
at the moment, such as waiting for data.
"""

from __future__ import annotations

import atexit
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from faulthandler import dump_traceback
from statistics import mean, median
from threading import Event, Thread
from time import monotonic
from typing import Any, Callable

from slurm_resolver.coordination import TRAIN, usage
from slurm_resolver.coordination.progress import (
    CALLBACK,
    COMPILING,
    DATA,
    FIRST,
    IDLE,
    MEETING,
    SAVING,
    START,
    STEP,
    TRAINING,
    VALIDATION,
    Report,
    report_seconds,
)
from slurm_resolver.coordination.tcp import outlast_outages
from slurm_resolver.coordination.training_group import Group
from slurm_resolver.coordination.usage import (
    BETWEEN,
    COMPUTING,
    STEPS,
    WAITING,
    Workers,
    seconds_of,
    summarize,
)
from slurm_resolver.coordination.wire import Message
from slurm_resolver.errors import RendezvousError
from slurm_resolver.log import exit_at_once, print_line, warn
from slurm_resolver.start.ready import find_group
from slurm_resolver.tf.gpu_usage import GpuUsage
from slurm_resolver.tf.resolver_cluster import cluster_of, slurm_step_of
from slurm_resolver.timeouts import Timeouts

# What the time of a training is spent with in a phase, if not with a validation.
_CAUSES = {
    FIRST: usage.START,
    COMPILING: usage.START,
    STEP: STEPS,
    DATA: usage.DATA,
    SAVING: usage.SAVING,
    MEETING: WAITING,
}


class Reporter:
    """What this process is doing; the attributes are as in `Report`.

    Attributes:
        waited: returns for how many seconds this process has waited for other workers in all its
            training steps (see `keras.waits`); None if that is not measured.
    """

    stage = ""
    phase = IDLE
    epoch = 0
    step = 0
    begun = 0
    _is_aside = False  # in a call of `predict` or `evaluate` that a callback makes
    _began = 0.0  # when the last step of this stage began; 0 before the first one
    _group: Group | None = None  # the workers, once it reports
    _exits = False  # once it is behind in a stall
    _has_told = False  # where the time of a training went
    _waited_at_compilation = 0.0

    def __init__(self) -> None:
        self.waited: Callable[[], float] | None = None
        self._gpu_usage = GpuUsage()
        self.begin_training(is_measured=False)

    def begin_training(self, *, is_measured: bool) -> None:
        """Begins to count the steps and seconds of a call of `fit`, or of a loop.

        Args:
            is_measured: whether `waited` counts in its steps.
        """
        self._waited = self.waited if is_measured else None
        self._since = monotonic()
        self._seconds: dict[str, float] = defaultdict(float)  # by cause
        self._durations: deque[float] = deque(maxlen=10_001)  # of the last steps
        self._epochs = 0
        self._steps = 0
        # before this training, and while other workers compiled
        self._waited_before = self._waited() if self._waited else 0.0
        self.whole_data = ""
        self.whole_steps = False

    def begin_epoch(self, epoch: int) -> None:
        """Begins an epoch, counted from 1."""
        self.enter(START, self.stage)
        self._epochs += 1
        self.epoch = epoch
        self.step = 0

    def enter(self, phase: str, stage: str | None = None) -> None:
        """Begins a phase; and a stage, unless that is None."""
        now = monotonic()
        self._seconds[self._cause()] += now - self._since
        if stage is not None:
            self.stage = stage
            self._began = 0.0
        if phase == COMPILING and self.phase != phase and self._waited:
            self._waited_at_compilation = self._waited()
        self.phase = phase
        self._since = now

    def _cause(self) -> str:
        """Returns what the time is being spent with."""
        if not self._steps:
            return usage.START
        if self.stage == VALIDATION:
            return usage.VALIDATION
        if self._is_aside:
            return BETWEEN
        return _CAUSES.get(self.phase, BETWEEN)

    def begin_step(self, steps: int = 1, phase: str = STEP) -> None:
        """Begins a step, or several that are done at once."""
        self.begun += steps
        self.enter(phase)
        if self.stage != VALIDATION:
            if self._is_aside:
                self.step += steps
            elif self._began:
                self._durations.append((self._since - self._began) / steps)
        self._began = self._since

    def end_step(self, steps: int = 1) -> None:
        """Ends a step, or several; none if there was no data for it."""
        if self.phase == COMPILING and self._waited:  # for others, which compiled as well
            self._waited_before += self._waited() - self._waited_at_compilation
        self.enter(CALLBACK if self.stage else IDLE)
        self._steps += steps if self.stage == TRAINING else 0

    @contextmanager
    def doing(self, phase: str) -> Iterator[None]:
        """Is in another phase in the block, such as SAVING."""
        before = self.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    @contextmanager
    def aside(self, name: str) -> Iterator[None]:
        """Is in a call that belongs to `fit`: a validation, or what a callback calls.

        Args:
            name: of the method, "predict" or "evaluate".
        """
        before = self.stage, self.step, self._is_aside
        self.enter(START, name)
        self.step = 0
        self._is_aside = True
        try:
            yield
        finally:
            stage, self.step, self._is_aside = before
            self.enter(CALLBACK, stage)

    def where(self) -> str:
        """Returns the step that this process is in, such as "in step 812 of epoch 3", or ''."""
        return Report(self.stage, self.epoch, self.step).where() if self.stage else ""

    def report(self) -> Report:
        """Returns what this process is doing."""
        gpus = self._gpu_usage
        gpus.sample()
        age = monotonic() - self._since
        seconds = defaultdict(float, self._seconds)
        seconds[self._cause()] += age
        if self._waited:
            in_steps = seconds.pop(STEPS, 0.0)
            waited = min(max(self._waited() - self._waited_before, 0.0), in_steps)
            seconds[COMPUTING] += in_steps - waited
            seconds[WAITING] += waited
        return Report(
            stage=self.stage,
            epoch=self.epoch,
            step=self.step,
            begun=self.begun,
            phase=self.phase,
            age=age,
            ms=1000 * median(self._durations or [0.0]),
            epochs=self._epochs,
            steps=self._steps,
            seconds=seconds,
            whole_data=self.whole_data,
            whole_steps=self.whole_steps,
            gpu_memory=gpus.peak_memory,
            gpu_busy=mean(gpus.busy) / 100 if gpus.busy else None,
        )

    def of_all_workers(self, timeout: float) -> Mapping[str, Report]:
        """Returns the report of each worker, by name; {} if one does not call this in time.

        Args:
            timeout: seconds.
        """
        if not self._group:
            return {}
        try:
            reports = self._group.gather("the end of the training", self.report(), timeout)
        except RendezvousError:
            return {}
        return {name: Report(*report) for name, report in reports.items()}

    def tell_usage(self, resolver: object, what: str, workers: Workers) -> None:
        """Prints where the time of a training went, unless SLURM_RESOLVER_REPORT is off.

        A program may call `fit` a thousand times: a short one is reported only if it is the first.

        Args:
            resolver: of the training.
            what: what has ended: "fit" or "the loop".
            workers: the report of each worker; if there is none, nothing is printed.
        """
        cluster = cluster_of(resolver)
        if slurm_step_of(resolver).usage_report == "off" or not workers:
            return
        if self._has_told and seconds_of(workers) < 10.0:
            return
        self._has_told = True
        nodes = {task.node for task in cluster.tasks if task.job in TRAIN} if cluster else ()
        for line in summarize(what, workers, len(nodes)):
            print_line(line)

    def start(self, resolver: object, on_stall: str | None = None) -> None:
        """Begins to report, if this process is one of several workers of a live step.

        With "exit", a process that is behind in a stall ends; None leaves that as it is. Raises
        ValueError for another `on_stall`.
        """
        if on_stall not in (None, "report", "exit"):
            raise ValueError(f'on_stall={on_stall!r}: expected "report" or "exit".')
        if on_stall:
            self._exits = on_stall == "exit"
        cluster = cluster_of(resolver)
        if self._group or not cluster or not cluster.step.is_live:
            return
        group = find_group(cluster, TRAIN)
        if not group:
            return
        self._group = group
        client = group.client
        rank = client.address.rank
        port = int(cluster.tasks[rank].address.rpartition(":")[2])
        seconds = cluster.step.stall_seconds
        limit = Timeouts.stall if seconds is None else float(seconds)
        ends = Event()

        def take_stall(message: Message) -> None:
            warn("%s", message["stall"])
            if rank in message["behind"]:
                dump_traceback(2, all_threads=True)
                if self._exits:
                    warn("this task ends with status 1 (on_stall='exit')")
                    exit_at_once()

        def run() -> None:
            is_ended = False
            # The last report is the one at exit: what follows may take long, and is no stall.
            while not is_ended:
                is_ended = ends.wait(report_seconds(limit))
                outlast_outages(port, 2 * client.address.silence)
                client.say(
                    "progress",
                    progress=self.report(),
                    limit=limit,
                )

        client.listen("stall", take_stall)
        thread = Thread(target=run, daemon=True)
        thread.start()
        # The thread calls TensorFlow, which fails once Python has ended. The last one comes first.
        atexit.register(thread.join, 1.0)
        atexit.register(ends.set)


reporter = Reporter()


def noting(iterator: Iterable[Any]) -> Iterator[Any]:
    """Yields the items of an iterator; while it waits for one, the phase is DATA."""
    reporter.enter(DATA)
    for batch in iterator:
        reporter.enter(STEP)
        yield batch
        reporter.enter(DATA)
