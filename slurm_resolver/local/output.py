"""Where the output of a local step's tasks goes (srun's --output, --error and --label)."""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Mapping, NamedTuple, Optional, Tuple

from slurm_resolver.errors import LaunchError

_LONGEST_LINE = 1024 * 1024
_FIELD = re.compile(r"%(\d*)([AJNajnstux%])")
_NUMBERS = "Aajnst"
_WIDEST = 10
_NO_ARRAY = 2**32 - 2  # %a of a job that is no array's


class OutputOptions(NamedTuple):
    """What the options say: file name patterns, "all", "none" or a rank; None where not given.

    `label` is None where the output of several tasks that meets on the screen gets one.
    """

    output: Optional[str] = None
    error: Optional[str] = None
    label: Optional[bool] = None
    append: bool = False


def file_name(pattern: str, fields: Mapping[str, str]) -> str:
    """Fills in srun's fields, such as %t; a backslash means that there are none.

    A number before the letter pads numbers with zeros, to 10 digits at most; fields that Slurm
    does not know stay as they are.
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")

    def value(match: re.Match[str]) -> str:
        width, letter = min(int(match[1] or 0), _WIDEST), match[2]
        if letter == "J":  # only the job id in it is padded
            job, dot, step = fields["J"].partition(".")
            return job.zfill(width) + dot + step
        text = "%" if letter == "%" else fields[letter]
        return text.zfill(width) if letter in _NUMBERS else text

    return _FIELD.sub(value, pattern)


class Output:
    """The output of one start of the step; every start opens its files anew."""

    def __init__(
        self,
        options: OutputOptions,
        num_tasks: int,
        fields: Mapping[str, str],
        directory: Optional[str] = None,
    ) -> None:
        """Takes the fields of file names but %t, and the tasks' working directory."""
        self._options = options
        self._num_tasks = num_tasks
        self._fields = {"n": "0", "a": str(_NO_ARRAY), **fields}
        self._directory = directory
        self._files: Dict[Path, BinaryIO] = {}
        self._pumps: List[threading.Thread] = []
        self._lock = threading.Lock()

    def streams(self, rank: int) -> Tuple[Any, Any]:
        """Returns what Popen takes as a task's stdout and stderr, the second maybe STDOUT.

        Raises:
            LaunchError: for a file that cannot be written.
        """
        import subprocess

        streams = []
        for pattern in self._patterns():
            target = self._target(pattern, rank)
            if target is None:
                streams.append(subprocess.DEVNULL)
            elif target == "" or self._options.label:
                if target:
                    self._open(target)
                streams.append(subprocess.PIPE)
            else:
                streams.append(self._open(target).fileno())
        return streams[0], streams[1]

    def attach(self, rank: int, stdout: Optional[BinaryIO], stderr: Optional[BinaryIO]) -> None:
        """Passes on what comes from the pipes of a task."""
        width = len(str(self._num_tasks - 1))
        labelled = self._options.label is not False
        label = f"{rank:{width}d}: ".encode() if labelled else b""
        screens = [sys.stdout.buffer, sys.stderr.buffer]
        if self._options.error is None and self._options.output not in (None, "", "all"):
            screens[1] = screens[0]  # `srun -o 1`: all that task 1 says
        for pattern, source, screen in zip(self._patterns(), (stdout, stderr), screens):
            if source is not None:
                target = self._target(pattern, rank)
                sink = self._open(target) if target else screen
                alone = not label and self._num_tasks == 1
                pump = self._copy if alone else self._pump
                thread = threading.Thread(target=pump, args=(source, sink, label), daemon=True)
                thread.start()
                self._pumps.append(thread)

    def close(self) -> None:
        """Ends when all is written, or soon after: one that left its group may hold a pipe open."""
        for pump in self._pumps:
            pump.join(timeout=1.0)
        for file in self._files.values():
            file.close()

    def _patterns(self) -> Tuple[str, str]:
        output = self._options.output or "all"
        error = self._options.error
        # As with srun, errors go where the output goes.
        return output, error or output

    def _target(self, pattern: str, rank: int) -> Optional[str]:
        """Returns a file's name, "" for the screen, and None for nowhere."""
        if pattern == "all" or pattern == str(rank):
            return ""
        if pattern == "none" or (pattern.isdigit() and int(pattern) < self._num_tasks):
            return None
        name = file_name(pattern, {**self._fields, "t": str(rank)})
        # srun opens a file a task or a node there, where the tasks run; others where it runs.
        there = self._directory is not None and re.search(r"%\d*[tnN]", pattern)
        return os.path.join(self._directory or "", name) if there else name

    def _open(self, name: str) -> BinaryIO:
        path = Path(name)
        if path not in self._files:
            try:
                if not self._options.append:
                    path.open("wb").close()
                # Whatever the tasks write to one file goes to its end.
                self._files[path] = path.open("ab")
            except OSError as error:
                raise LaunchError(
                    f"cannot write to {name!r} ({error.strerror}): expected a file name, in a "
                    "folder that exists"
                ) from None
        return self._files[path]

    def _pump(self, source: BinaryIO, sink: BinaryIO, label: bytes) -> None:
        """Line by line, so that the lines of several tasks do not mix."""
        for line in iter(lambda: source.readline(_LONGEST_LINE), b""):
            if not self._write(sink, label + line + (b"" if line.endswith(b"\n") else b"\n")):
                return

    def _copy(self, source: BinaryIO, sink: BinaryIO, label: bytes) -> None:
        """A single task's output, as it comes."""
        for piece in iter(lambda: os.read(source.fileno(), 65_536), b""):
            if not self._write(sink, piece):
                return

    def _write(self, sink: BinaryIO, text: bytes) -> bool:
        try:
            with self._lock:
                sink.write(text)
                sink.flush()
        except (BrokenPipeError, ValueError):
            return False  # nobody reads any more; the task finds that out by itself
        return True
