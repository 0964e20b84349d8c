"""Whether a local job's step that has failed is worth another start, by the rules of a real one."""

from __future__ import annotations

import signal
import threading
import time
from typing import List, Optional

from slurm_resolver.supervision.policy import Attempt, same_again
from slurm_resolver.supervision.step_output import StepOutput


class LocalFailures:
    """The failures of a local job, step after step; it listens to what the tasks print."""

    def __init__(self) -> None:
        self._attempts: List[Attempt] = []
        self._output = StepOutput()
        self._all_heard = True
        self._begun = time.monotonic()
        self._lock = threading.Lock()

    def listen(self, rank: Optional[int], stream: str, line: bytes) -> None:
        """Takes a line that a task has printed, as `Output` tells it. Safe in any thread."""
        with self._lock:
            if stream == "unknown":
                self._all_heard = False
                return
            label = b"" if rank is None else b"%d: " % rank
            self._output.feed(stream, label + line.rstrip(b"\n") + b"\n")

    def same_again(self, rank: int, status: int) -> bool:
        """Whether the step that ends by this task failed as the one before it.

        It may have printed nothing that tells: then its exit status, or signal, is compared. What
        nobody can read is never the same.
        """
        ended = f"Exited with exit code {status}"
        if status > 128:
            ended = signal.strsignal(status - 128) or ended
        with self._lock:
            # the words of srun, which the rules are made for
            told = f"srun: error: localhost: task {rank}: {ended}\n"
            self._output.feed("stderr", told.encode())
            failure = self._output.failure(status)
            self._attempts.append(Attempt(failure, time.monotonic() - self._begun, ("localhost",)))
            self._output, self._begun = StepOutput(), time.monotonic()
            heard, self._all_heard = self._all_heard, True
        return heard and same_again(self._attempts)
