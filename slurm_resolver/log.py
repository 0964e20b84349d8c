"""The package's log, the logger ``slurm_resolver`` of Python's `logging`.

It logs warnings; at the level INFO each task also logs its part in the cluster. `logging` is
imported when it is needed: the import takes a third of the start of one of this package's commands.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

warned: set[str] = set()  # messages that this process has logged


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
    # A program that has not imported logging has not set that level.
    if "logging" in sys.modules and message not in warned:
        import logging

        warned.add(message)
        logging.getLogger("slurm_resolver").info("%s", message)


def debug(message: str, error: Exception) -> None:
    """Logs the traceback of an error at the level DEBUG."""
    import logging

    logging.getLogger("slurm_resolver").debug("%s", message, exc_info=error)


def print_line(text: object, program: str = "slurm_resolver") -> None:
    """Writes a line of `program` to standard error in one call, as others may write to it as well.

    It is flushed, as the process may end next.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
        sys.stderr.write(f"{program}: {text}\n")
        sys.stderr.flush()


def exit_at_once(status: int = 1) -> NoReturn:
    """Ends this process, with status 1 if a stuck thread holds the locks of its output.

    A thread that flushes it could not be started while the interpreter ends, from Python 3.12 on.
    """
    import faulthandler

    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(1.0, exit=True, file=nowhere)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(status)
