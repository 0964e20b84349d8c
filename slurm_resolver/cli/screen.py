"""Standard output and error of a command, whose faults do not hide the command's exit status.

The program that reads the output may have ended (`slurm-resolver explain log | head`), or a disk
may be full.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class Screen(io.FileIO):
    """A file that keeps an error instead of raising it."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Writes the data, or drops it."""
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            return len(data)


def screen_of(name: str, number: int) -> Screen:
    """Makes "stdout" or "stderr" a stream that writes to a Screen, and returns that."""
    stream = getattr(sys, name)
    if stream is None:  # it is closed, and another file would take its number
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    screen = Screen(number, "w", closefd=False)
    text = io.TextIOWrapper(
        io.BufferedWriter(screen),
        encoding=getattr(stream, "encoding", None),
        errors="backslashreplace",  # a terminal may only know ASCII
        line_buffering=True,
    )
    setattr(sys, name, text)
    return screen
