"""The output of a local step's tasks, with their ranks before the lines (srun's --label).

All output comes through pipes, and threads copy it, so that lines of several tasks do not mix.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import cache, partial
from subprocess import Popen
from threading import Lock, Thread
from typing import IO

from slurm_resolver import log

# TensorFlow 2.21 logs these when it is imported, before it reads TF_CPP_MIN_LOG_LEVEL.
_EARLY_NOTES = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|I0000 \S+ +\d+ (port\.cc:\d+\] oneDNN custom|cudart_stub\.cc:\d+\] Could not find cuda)"
)

# prints a line of the launcher's own
print_line = partial(log.print_line, program="slurm-resolver run")
# for lines, which tasks write at the same time
lock = Lock()


def copy_output(process: Popen[bytes], label: str) -> list[Thread]:
    """Starts to copy what comes from a task's pipes to the screen, with a label before each line.

    Returns the threads, which end with the output.
    """
    threads = [
        Thread(target=_copy, args=(source, screen, label.encode()), daemon=True)
        for source, screen in ((process.stdout, 1), (process.stderr, 2))
    ]
    for thread in threads:
        thread.start()
    return threads


def _copy(source: IO[bytes], screen: int, label: bytes) -> None:
    shows_notes = os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0"
    with source, suppress(BrokenPipeError):  # the reader of the screen has gone
        for line in source:
            if shows_notes or not _EARLY_NOTES.match(line):
                with lock:
                    _write(label + line.rstrip(b"\n") + b"\n", screen)


def _write(line: bytes, screen: int) -> None:
    """Writes a line. If the disk is full, the line is lost, and the tasks continue."""
    try:
        while line:
            line = line[os.write(screen, line) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        _report_loss(error.strerror)


@cache  # only the first loss is reported
def _report_loss(reason: str) -> None:
    print_line(
        f"cannot write the output of the tasks: {reason}. The lines are lost; the tasks continue"
    )
