"""The package's log, the logger ``slurm_resolver`` of Python's `logging`.

It is quiet but for warnings; at the level INFO each task says what it is. `logging` is imported
only when there is something to log: importing it takes a third of the time in which a command of
this package starts.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn, Set

warned: Set[str] = set()  # the messages that were logged once in this process


def warn(message: str, *arguments: object) -> None:
    """Logs a warning under the package's name; `arguments` fill the message as in `logging`."""
    import logging

    logging.getLogger("slurm_resolver").warning(message, *arguments)


def warn_once(message: str) -> None:
    """Logs a warning unless this process has logged the same message before."""
    if message not in warned:
        warned.add(message)
        warn("%s", message)


def tell_once(message: str) -> None:
    """Logs at the level INFO, unless this process has logged the same message before."""
    # as long as nobody has imported logging, nobody has asked for that level
    if "logging" in sys.modules and message not in warned:
        import logging

        warned.add(message)
        logging.getLogger("slurm_resolver").info("%s", message)


def print_line(text: str) -> None:
    """Writes a line to standard error by one call, and flushes it: the process may end next."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
        sys.stderr.write(f"slurm_resolver: {text}\n")
        sys.stderr.flush()


def exit_at_once(status: int) -> NoReturn:
    """Ends a process in which threads may be stuck, and may hold the locks of its output."""
    import threading

    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()

    flushing = threading.Thread(target=flush, daemon=True)
    flushing.start()
    flushing.join(1.0)
    os._exit(status)
