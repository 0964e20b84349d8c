"""The package's log. Python's `logging` is imported only when there is something to say.

It would take a third of the time that the whole command line needs to start.
"""

from __future__ import annotations

from typing import Set

warned: Set[str] = set()  # what `warn_once` has said in this process


def warn(message: str, *arguments: object) -> None:
    """Logs a warning as `logging` does, under the package's name."""
    import logging

    logging.getLogger("slurm_resolver").warning(message, *arguments)


def warn_once(message: str) -> None:
    """Warns as `warn` does, unless this very message was said before in this process."""
    if message not in warned:
        warned.add(message)
        warn("%s", message)
