"""Connects a relay to the monitor, in a thread: a name may take many seconds to resolve."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import Callable, Optional

from slurm_resolver.errors import RendezvousError
from slurm_resolver.rendezvous.wire import Connection

OpenConnection = Callable[[], Connection]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25  # seconds between two attempts, for the whole node
_SLOW_AFTER_SECONDS = 600.0  # a monitor that is not up by then may never be: try less often
_SLOW_PAUSE = 10.0


class RelayConnector:
    """Tries until there is a connection, or it is stopped."""

    def __init__(self, connect: OpenConnection, wake: Callable[[], None]) -> None:
        """Begins to try.

        Args:
            connect: opens the connection; it may block, and raise an error.
            wake: called in the thread when there is something for `take`.
        """
        self._connect = connect
        self._wake = wake
        self._found: queue.SimpleQueue[Optional[Connection]] = queue.SimpleQueue()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="slurm_resolver connector", daemon=True).start()

    def take(self) -> Optional[Connection]:
        """Returns the connection; None where this task cannot tell who answers."""
        return self._found.get()

    def stop(self) -> None:
        """Ends the attempts, and closes a connection that has not been taken."""
        self._stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:
                found = self._found.get_nowait()
                if found is not None:
                    found.close()

    def _run(self) -> None:
        pause, started = _FIRST_PAUSE, time.monotonic()
        found: Optional[Connection] = None
        while found is None and not self._stopped.is_set():
            try:
                found = self._connect()
            except RendezvousError:  # which is of this task: the others try for themselves
                break
            except (OSError, ValueError):
                slow = time.monotonic() - started > _SLOW_AFTER_SECONDS
                self._stopped.wait(_SLOW_PAUSE if slow else pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        self._found.put(found)
        self._wake()
        if self._stopped.is_set():
            self.stop()
