"""Where the output of a local step's tasks goes (srun's --output, --error and --label)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any, BinaryIO, Dict, List, Mapping, NamedTuple, Optional, Tuple

from slurm_resolver.errors import LaunchError

_LONGEST_LINE = 1024 * 1024
_FIELD = re.compile(r"%(\d*)([AJNajnstux%])")
_NUMBERS = "Aajnst"
_WIDEST = 10
_NO_ARRAY = 2**32 - 2  # %a of a job outside any array


class OutputOptions(NamedTuple):
    """What the options say.

    Attributes:
        output: a file name pattern, "all", "none" or a rank; None where not given.
        error: the same.
        label: whether lines begin with the rank; None: those on the screen do, in files not.
        append: whether to keep what the files hold already.
    """

    output: Optional[str] = None
    error: Optional[str] = None
    label: Optional[bool] = None
    append: bool = False


def file_name(pattern: str, fields: Mapping[str, str]) -> str:
    """Returns the pattern with srun's fields, such as %t, filled in.

    A number before the letter pads a number with zeros, to 10 digits at most. Fields that Slurm
    does not know stay as they are. With a backslash in the pattern nothing is filled in.
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")

    def value(match: re.Match[str]) -> str:
        width, letter = min(int(match[1] or 0), _WIDEST), match[2]
        if letter == "J":  # 42.0: only the job id is padded
            job, dot, step = fields["J"].partition(".")
            return job.zfill(width) + dot + step
        text = "%" if letter == "%" else fields[letter]
        return text.zfill(width) if letter in _NUMBERS else text

    return _FIELD.sub(value, pattern)


class Output:
    """The output of one start of the step; every start opens its files again."""

    def __init__(
        self,
        options: OutputOptions,
        num_tasks: int,
        fields: Mapping[str, str],
        directory: Optional[str] = None,
    ) -> None:
        """Prepares it; no file is opened yet.

        Args:
            fields: the values of the fields in file names, except %t.
            directory: the tasks' working directory; None for this process's own.
        """
        self._options = options
        self._num_tasks = num_tasks
        self._fields = {"n": "0", "a": str(_NO_ARRAY), **fields}
        self._directory = directory
        self._files: Dict[Path, BinaryIO] = {}
        self._threads: List[threading.Thread] = []
        self._lock = threading.Lock()

    def streams(self, rank: int) -> Tuple[Any, Any]:
        """Returns what Popen takes as a task's stdout and stderr.

        Raises:
            LaunchError: for a file that cannot be written.
        """
        streams = []
        for pattern in self._patterns():
            name = self._file_name(pattern, rank)
            if name is None:
                streams.append(subprocess.DEVNULL)
            elif name == "" or self._options.label:
                if name:
                    self._open(name)
                streams.append(subprocess.PIPE)
            else:
                streams.append(self._open(name).fileno())
        return streams[0], streams[1]

    def copy_from(
        self, rank: int, stdout: Optional[IO[bytes]], stderr: Optional[IO[bytes]]
    ) -> None:
        """Starts to copy what comes from a task's pipes (None where it writes to no pipe)."""
        width = len(str(self._num_tasks - 1))
        labelled = self._options.label is not False
        label = f"{rank:{width}d}: ".encode() if labelled else b""
        screens = [sys.stdout.buffer, sys.stderr.buffer]
        if self._options.error is None and self._options.output not in (None, "", "all"):
            screens[1] = screens[0]  # `srun -o 1`: all that task 1 says
        for pattern, source, screen in zip(self._patterns(), (stdout, stderr), screens):
            if source is not None:
                name = self._file_name(pattern, rank)
                target = self._open(name) if name else screen
                unchanged = not label and self._num_tasks == 1
                copy = self._copy_bytes if unchanged else self._copy_lines
                thread = threading.Thread(target=copy, args=(source, target, label), daemon=True)
                thread.start()
                self._threads.append(thread)

    def close(self) -> None:
        """Waits until all is written, and closes the files.

        It does not wait for ever: a process that has left its task's group may keep a pipe open.
        """
        for thread in self._threads:
            thread.join(timeout=1.0)
        for file in self._files.values():
            file.close()

    def _patterns(self) -> Tuple[str, str]:
        output = self._options.output or "all"
        error = self._options.error
        return output, error or output  # as with srun, errors go where the output goes

    def _file_name(self, pattern: str, rank: int) -> Optional[str]:
        """Returns a file's name; "" for the screen, and None where the output is discarded."""
        if pattern == "all" or pattern == str(rank):
            return ""
        if pattern == "none" or (pattern.isdigit() and int(pattern) < self._num_tasks):
            return None
        name = file_name(pattern, {**self._fields, "t": str(rank)})
        # A file for each task or node is opened in the tasks' directory, others in srun's own.
        opened_by_task = self._directory is not None and re.search(r"%\d*[tnN]", pattern)
        return os.path.join(self._directory or "", name) if opened_by_task else name

    def _open(self, name: str) -> BinaryIO:
        path = Path(name)
        if path not in self._files:
            try:
                if not self._options.append:
                    path.open("wb").close()
                # Several tasks may write to one file: each writes to its end.
                self._files[path] = path.open("ab")
            except OSError as error:
                raise LaunchError(
                    f"cannot write to {name!r} ({error.strerror}): expected a file name, in a "
                    "folder that exists"
                ) from None
        return self._files[path]

    def _copy_lines(self, source: IO[bytes], target: BinaryIO, label: bytes) -> None:
        """Copies line by line, so that the lines of several tasks do not mix."""
        for line in iter(lambda: source.readline(_LONGEST_LINE), b""):
            if not self._write(target, label + line + (b"" if line.endswith(b"\n") else b"\n")):
                return

    def _copy_bytes(self, source: IO[bytes], target: BinaryIO, label: bytes) -> None:
        """Copies the output of the only task as it comes."""
        for piece in iter(lambda: os.read(source.fileno(), 65_536), b""):
            if not self._write(target, piece):
                return

    def _write(self, target: BinaryIO, text: bytes) -> bool:
        try:
            with self._lock:
                target.write(text)
                target.flush()
        except (BrokenPipeError, ValueError):
            return False  # the reader has gone; the task finds that out by itself
        return True
