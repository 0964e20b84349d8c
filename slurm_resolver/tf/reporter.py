"""What this process is doing, for the coordination service (see `coordination.progress`)."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import statistics
import sys
import threading
import time
from collections import deque
from typing import Callable, Deque, Iterator, Optional, Tuple

from slurm_resolver.coordination.client import Client
from slurm_resolver.coordination.progress import (
    CALLBACK,
    COMPILING,
    DATA,
    IDLE,
    SAVING,
    STEP,
    Report,
    report_seconds,
)
from slurm_resolver.coordination.wire import Message
from slurm_resolver.log import warn

STALL_SECONDS = 300.0
_WINDOW = 12  # reports over which the shares of time are taken


class Reporter:
    """What this process is doing. Training code calls its methods; they only write attributes.

    Attributes:
        stage, phase, epoch, step, begun: as in `Report`.
        look: returns when the running step asked for data (negative: when it got them), in seconds
            since 1970, and the seconds waited for data in all, as far as only TensorFlow knows.
    """

    def __init__(self) -> None:
        self.stage, self.phase = "", IDLE
        self.epoch = self.step = self.begun = 0
        self.look: Callable[[], Tuple[float, float]] = lambda: (0.0, 0.0)
        self._since = time.monotonic()
        self._began = self._ended = 0.0  # the last step of this stage
        self._waited = self._outside = 0.0
        self._durations: Deque[float] = deque(maxlen=101)
        self._samples: Deque[Tuple[float, float, float]] = deque(maxlen=_WINDOW)
        self._client: Optional[Client] = None

    def enter(self, phase: str, stage: Optional[str] = None) -> None:
        """Begins a phase; and a stage, unless that is None."""
        now = time.monotonic()
        if self.phase == DATA:
            self._waited += now - self._since
        if stage is not None:
            self.stage, self._began, self._ended = stage, 0.0, 0.0
        self.phase, self._since = phase, now

    def begin_step(self, steps: int = 1, phase: str = STEP) -> None:
        """Begins a step, or as many as are done at once."""
        self.begun += steps
        ended, began = self._ended, self._began
        self.enter(phase)
        if ended:
            self._outside += self._since - ended
        if began:
            self._durations.append((self._since - began) / steps)
        self._began = self._since

    def end_step(self) -> None:
        """Ends it: what follows is no part of it."""
        self.phase = CALLBACK if self.stage else IDLE
        self._since = self._ended = time.monotonic()

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Saves in the block."""
        phase = self.phase
        self.enter(SAVING)
        try:
            yield
        finally:
            self.enter(phase)

    def report(self) -> Report:
        """Returns what this process is doing."""
        phase, since, now = self.phase, self._since, time.monotonic()
        mark, waited = self.look()
        marked = now - time.time() + abs(mark)
        if phase in (STEP, COMPILING) and marked > since - 0.001:
            phase, since = DATA if mark > 0 else STEP, max(since, marked)
        waited += self._waited + (now - since if phase == DATA else 0.0)
        self._samples.append((now, waited, self._outside))
        first = self._samples[0]
        seconds = max(now - first[0], 0.001)
        shares = [round((waited - first[1]) / seconds, 3), (self._outside - first[2]) / seconds]
        durations = list(self._durations)
        ms = 1000 * statistics.median(durations) if durations else 0.0
        place = (self.stage, self.epoch, self.step, self.begun, phase)
        return Report(*place, now - since, round(ms, 3), *(round(min(s, 1.0), 3) for s in shares))

    def start(self, client: Client, limit: float, exits: bool) -> None:
        """Has a thread tell the service, from now on.

        Args:
            client: this process's connection.
            limit: the seconds without a step from which on it is reported; 0 for never.
            exits: whether this process ends then, if it is behind.
        """
        self._limit, self._exits = limit, exits
        if self._client is not None:
            return
        self._client = client
        client.listen("stall", self._take_stall)
        stop = threading.Event()
        thread = threading.Thread(target=self._run, args=[client, stop], daemon=True)
        thread.start()

        def end() -> None:  # the thread calls TensorFlow, which fails once Python has ended
            stop.set()
            thread.join(1.0)

        atexit.register(end)

    def _run(self, client: Client, stop: threading.Event) -> None:
        seconds = report_seconds(self._limit)
        while True:
            client.say("progress", progress=list(self.report()), limit=self._limit)
            if stop.wait(seconds):
                return

    def _take_stall(self, message: Message) -> None:
        assert self._client is not None
        warn("%s", message["stall"])
        if self._client.address.rank in message["behind"]:
            faulthandler.dump_traceback(2, all_threads=True)
        if self._exits and self._client.address.rank in message["end"]:
            flush = threading.Thread(target=sys.stdout.flush, daemon=True)
            flush.start()
            flush.join(1.0)  # a stuck thread may hold its lock
            warn("this task ends with status 1 (on_stall='exit')")
            os._exit(1)


reporter = Reporter()
