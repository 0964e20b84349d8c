"""Standard output and error of a command, whose faults do not hide the command's exit status.

The program that reads the output may have ended (`slurm-resolver explain log | head`), a disk may
be full, and a stream may be closed (`>&-`).
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class Screen(io.TextIOWrapper):
    """A stream of text that keeps an error instead of raising it; its `buffer` raises."""

    error: OSError | None = None

    def write(self, text: str) -> int:
        """Writes the text, or drops it."""
        try:
            super().write(text)
        except OSError as error:
            self.error = error
        return len(text)

    def flush(self) -> None:
        """Writes what is buffered; what cannot be written stays there."""
        try:
            super().flush()
        except OSError as error:
            self.error = error


def reader_has_ended() -> bool:
    """Returns whether nobody reads the standard output any more."""
    return isinstance(getattr(sys.stdout, "error", None), BrokenPipeError)


@contextmanager
def screens() -> Iterator[None]:
    """Makes the standard output and error Screens."""
    # In the order of their numbers: a new file takes the lowest free one.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it is closed; a read fails, as from a closed stream
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), mode))
    with _screen("stdout"), _screen("stderr"):
        yield


@contextmanager
def _screen(name: str) -> Iterator[None]:
    stream = getattr(sys, name)
    if not isinstance(stream, io.TextIOWrapper):  # a program that calls `main` has replaced it
        yield
        return
    stream.flush()
    screen = Screen(
        stream.buffer,
        encoding=stream.encoding,
        errors="backslashreplace",  # a terminal may only know ASCII
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    setattr(sys, name, screen)
    try:
        yield
    finally:
        setattr(sys, name, stream)
        screen.flush()
        if screen.error:
            # Python would write the rest of the buffer at its end, and fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), screen.fileno())
        screen.detach()
