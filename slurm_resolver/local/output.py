"""The output of a local step's tasks, with their ranks before the lines (srun's --label).

All output comes through pipes, and threads copy it, so that lines of several tasks do not mix.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import partial
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


class Output:
    """The output of one step."""

    # whether a line could not be written; only the first one is reported
    _lost_lines = False

    def __init__(self, num_tasks: int, label: bool) -> None:
        """Takes the number of tasks, and whether lines begin with the rank."""
        width = len(str(num_tasks - 1))
        # what each line of a task begins with, once it is filled with the rank
        self._label = f"{{:{width}d}}: " if label else ""
        # one for each pipe
        self._threads: list[Thread] = []
        # for lines, which tasks write at the same time
        self._lock = Lock()

    def copy(self, rank: int, process: Popen[bytes]) -> None:
        """Starts to copy what comes from a task's pipes to the screen."""
        label = self._label.format(rank).encode()
        for source, screen in ((process.stdout, 1), (process.stderr, 2)):
            thread = Thread(target=self._copy, args=(source, screen, label), daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Waits until all is written."""
        for thread in self._threads:
            thread.join(timeout=1.0)  # a process that has left its task's group may keep a pipe

    def _copy(self, source: IO[bytes], screen: int, label: bytes) -> None:
        shows_notes = os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0"
        with source, suppress(BrokenPipeError):  # the reader of the screen has gone
            for line in source:
                if shows_notes or not _EARLY_NOTES.match(line):
                    with self._lock:
                        self._write(label + line.rstrip(b"\n") + b"\n", screen)

    def _write(self, line: bytes, screen: int) -> None:
        """Writes a line. If the disk is full, the line is lost, and the tasks continue."""
        try:
            while line:
                line = line[os.write(screen, line) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            if not self._lost_lines:
                self._lost_lines = True
                print_line(
                    f"cannot write the output of the tasks: {error.strerror}. The lines are lost; "
                    "the tasks continue"
                )
