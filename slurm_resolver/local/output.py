"""Where the output of a local step's tasks goes (srun's --output and --label).

All output comes through pipes, and threads copy it, so that lines of several tasks do not mix.
"""

from __future__ import annotations

import functools
import io
import os
import re
import subprocess
import threading
from contextlib import suppress
from typing import IO, BinaryIO

from slurm_resolver import log
from slurm_resolver.errors import LaunchError
from slurm_resolver.local import RunOptions, Variables

# TensorFlow 2.21 logs these when it is imported, before it reads TF_CPP_MIN_LOG_LEVEL.
_EARLY_NOTES = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|I0000 \S+ +\d+ (port\.cc:\d+\] oneDNN custom|cudart_stub\.cc:\d+\] Could not find cuda)"
)

# The fields of a file name, and the variables of the task that they stand for.
_VARIABLES = {
    "%t": "SLURM_PROCID",
    "%j": "SLURM_JOB_ID",
    "%s": "SLURM_STEP_ID",
    "%n": "SLURM_NODEID",
    "%N": "SLURMD_NODENAME",
    "%x": "SLURM_JOB_NAME",
    "%u": "SLURM_JOB_USER",
}

# prints a line of the launcher's own
print_line = functools.partial(log.print_line, program="slurm-resolver run")


def file_name(pattern: str, variables: Variables) -> str:
    """Returns the pattern with srun's fields, such as %t, filled in; unknown ones stay."""
    fields = {field: variables[name] for field, name in _VARIABLES.items()}
    fields["%%"] = "%"
    return re.sub("%.", lambda match: fields.get(match[0], match[0]), pattern)


class Output:
    """The output of one step; every step opens its files again."""

    # whether a line could not be written; only the first one is reported
    _lost_lines = False

    def __init__(self, options: RunOptions) -> None:
        """Prepares it; no file is opened yet."""
        self._options = options
        # by name; several tasks may have the same one
        self._files: dict[str, BinaryIO] = {}
        # one for each pipe
        self._threads: list[threading.Thread] = []
        # for lines, which tasks write at the same time
        self._lock = threading.Lock()

    def open(self, rank: int, variables: Variables) -> BinaryIO | None:
        """Returns the file for a task's output, empty at first; None for the screen.

        Raises:
            LaunchError: for a file that cannot be written.
        """
        name = self._options.output
        if name.isdecimal() and int(name) < self._options.num_tasks:  # the only rank that is shown
            name = "all" if int(name) == rank else "none"
        if name.lower() == "all":
            return None
        if name.lower() == "none":
            name = os.devnull
        name = file_name(name, variables)
        if name not in self._files:
            try:
                self._files[name] = io.FileIO(name, "w")
            except OSError as error:
                raise LaunchError(
                    f"cannot write to {name!r} ({error.strerror}): expected a file name, in a "
                    "folder that exists"
                ) from None
        return self._files[name]

    def copy(self, rank: int, process: subprocess.Popen[bytes], file: BinaryIO | None) -> None:
        """Starts to copy what comes from a task's pipes to its file, or to the screen."""
        tasks = self._options.num_tasks
        labelled = not file if self._options.label is None else self._options.label
        width = len(str(tasks - 1))
        label = f"{rank:{width}d}: ".encode() if labelled else b""
        end = b"\n" if labelled or (not file and tasks > 1) else b""  # of the last line
        for source, screen in ((process.stdout, 1), (process.stderr, 2)):
            if source:
                # Without a buffer: a failed line would stay there, and fail again.
                target = file or io.FileIO(screen, "w", closefd=False)
                thread = threading.Thread(
                    target=self._copy, args=(source, target, label, end), daemon=True
                )
                thread.start()
                self._threads.append(thread)

    def close(self) -> None:
        """Waits until all is written, and closes the files."""
        for thread in self._threads:
            thread.join(timeout=1.0)  # a process that has left its task's group may keep a pipe
        for file in self._files.values():
            file.close()

    def _copy(self, source: IO[bytes], target: BinaryIO, label: bytes, end: bytes) -> None:
        shows_notes = os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0"
        # BrokenPipeError: the reader of the screen has gone; ValueError: the file is closed
        with source, suppress(BrokenPipeError, ValueError):
            for line in source:
                if shows_notes or not _EARLY_NOTES.match(line):
                    if not line.endswith(b"\n"):
                        line += end
                    with self._lock:
                        self._write(label + line, target)

    def _write(self, line: bytes, target: BinaryIO) -> None:
        """Writes a line. If the disk is full, the line is lost, and the tasks continue."""
        try:
            while line:
                line = line[target.write(line) or 0 :]
        except BrokenPipeError:
            raise
        except OSError as error:
            if not self._lost_lines:
                self._lost_lines = True
                print_line(
                    f"cannot write the output of the tasks: {error.strerror}. The lines are lost; "
                    "the tasks continue"
                )
