"""The package's log. Python's `logging` is imported only when there is something to log.

Importing it takes a third of the time in which a command of this package starts.
"""

from __future__ import annotations

from typing import Set

warned: Set[str] = set()  # the messages that `warn_once` has logged in this process


def warn(message: str, *arguments: object) -> None:
    """Logs a warning under the package's name; `arguments` fill the message as in `logging`."""
    import logging

    logging.getLogger("slurm_resolver").warning(message, *arguments)


def warn_once(message: str) -> None:
    """Logs a warning unless this process has logged the same message before."""
    if message not in warned:
        warned.add(message)
        warn("%s", message)
