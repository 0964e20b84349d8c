"""`--preempt-after`: a preemption that comes when the training has something to lose.

How long a training takes until its first step depends on the machine. A preemption before that
finds nobody who would answer the signal, and shows nothing; so the tasks tell when they are ready.
"""

from __future__ import annotations

import os
import queue
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Dict, NamedTuple, Optional, Tuple

from slurm_resolver.errors import LaunchError
from slurm_resolver.training_reports import READY, SAVED, VARIABLE

TRAINING = -1  # the event that the tasks train, where the others are numbers of signals
_END = "end"


class PlannedPreemption(NamedTuple):
    """A preemption so many seconds after the first step, or after the start of the tasks."""

    seconds: float
    from_start: bool = False


def planned_preemption(text: Optional[str]) -> Optional[PlannedPreemption]:
    """Reads ``S`` or ``S:start``. None stays None.

    Raises:
        LaunchError: for another text.
    """
    if text is None:
        return None
    number, colon, event = text.partition(":")
    try:
        seconds = float(number)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < float("inf") or (colon and event != "start"):
        raise LaunchError(
            f"--preempt-after {text!r}: expected seconds after the first step of the training, 0 "
            "or more; or, after the start of the tasks, as 20:start"
        )
    return PlannedPreemption(seconds, bool(colon))


class TrainingReports:
    """Reads what the tasks tell of their training."""

    def __init__(self, events: queue.Queue[Tuple[Optional[int], int]]) -> None:
        """Begins to read. The event (None, `TRAINING`) comes once."""
        self.ready = False
        self.saved = False
        self._events = events
        self._folder = tempfile.mkdtemp(prefix="slurm-resolver-")
        path = Path(self._folder, "training")
        os.mkfifo(path)
        # For writing as well: the reading then never ends between two that write.
        self._pipe = os.open(path, os.O_RDWR)
        self.variables: Dict[str, str] = {VARIABLE: str(path)}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the reading, after all that the tasks have told so far."""
        os.write(self._pipe, f"{_END}\n".encode())
        self._thread.join()
        os.close(self._pipe)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self) -> None:
        left = b""
        while True:
            *lines, left = (left + os.read(self._pipe, 4096)).split(b"\n")
            events = [line.decode(errors="replace") for line in lines]
            if READY in events and not self.ready:
                self.ready = True
                self._events.put((None, TRAINING))
            self.saved = self.saved or SAVED in events
            if _END in events:
                return
