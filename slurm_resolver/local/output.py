"""Where the output of a local step's tasks goes (srun's --output, --error and --label)."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import (
    IO,
    Any,
    BinaryIO,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from slurm_resolver.errors import LaunchError

_LONGEST_LINE = 1024 * 1024
_LONGEST_TOLD = 4 * 1024 * 1024  # of each file
_FIELD = re.compile(r"%(\d*)(.?)", re.DOTALL)
_NUMBERS = "Aabjnrst"
_WIDEST = 10
_OF_A_TASK = "tnN"  # known only where the task runs
_NO_ARRAY = 2**32 - 2  # what %a becomes there; srun itself takes 0


Listen = Callable[[Optional[int], str, bytes], None]


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
    does not know stay as they are, and a last % is dropped. With a backslash in the pattern nothing
    is filled in.

    %r, in names that sbatch fills in the number of restarts, is 0 in srun's after a restart too.

    Where a field is one of the task's own, what srun has filled in is read a second time where the
    task runs: `%%t-%t` is not `%t-0` but `0-0`.
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")
    fields = {"a": "0", "b": "0", "r": "0", **fields}
    of_job = {letter: text for letter, text in fields.items() if letter not in _OF_A_TASK}
    name = _fill_in(pattern, of_job)
    if not is_per_task(pattern):
        return name
    return _fill_in(name, {**fields, "a": str(_NO_ARRAY), "b": str(_NO_ARRAY % 10)})


def is_per_task(pattern: str) -> bool:
    """Returns whether each task, or node, gets a file of its own, which it opens itself."""
    letters = [match[2] for match in _FIELD.finditer(pattern)]
    return "\\" not in pattern and any(letter and letter in _OF_A_TASK for letter in letters)


def _fill_in(pattern: str, fields: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        width, letter = min(int(match[1] or 0), _WIDEST), match[2]
        if match[0] == "%%":
            return "%"
        if letter not in fields:
            return "" if match[0] == "%" else match[0]
        if letter == "J":  # 42.0: only the job id is padded
            job, dot, step = fields["J"].partition(".")
            return job.zfill(width) + dot + step
        return fields[letter].zfill(width) if letter in _NUMBERS else fields[letter]

    return _FIELD.sub(value, pattern)


class Output:
    """The output of one start of the step; every start opens its files again."""

    def __init__(
        self,
        options: OutputOptions,
        num_tasks: int,
        fields: Mapping[str, str],
        directory: Optional[str] = None,
        listen: Optional[Listen] = None,
    ) -> None:
        """Prepares it; no file is opened yet.

        Args:
            fields: the values of the fields in file names, except %t.
            directory: the tasks' working directory; None for this process's own.
            listen: gets the rank, "stdout" or "stderr", and each line that is copied; and at the
                end those that tasks wrote into files by themselves, with None as the rank where
                several did, and "stderr" where that is among it. Of what cannot be read again it
                gets None, "unknown" and no line.
        """
        self._options = options
        self._num_tasks = num_tasks
        self._fields = {"n": "0", **fields}
        self._directory = directory
        self._listen = listen
        self._files: Dict[Path, BinaryIO] = {}
        self._begins: Dict[Path, int] = {}  # how long each was when it was opened
        # by file the tasks that write it by themselves; None for what goes nowhere
        self._writers: Dict[Optional[Path], List[Tuple[int, str]]] = {}
        self._threads: List[threading.Thread] = []
        self._lock = threading.Lock()

    def streams(self, rank: int) -> Tuple[Any, Any]:
        """Returns what Popen takes as a task's stdout and stderr.

        Raises:
            LaunchError: for a file that cannot be written.
        """
        if rank == 0 and self._options.error is not None:
            # Also where errors go elsewhere, as srun does.
            name = self._file_name(self._options.error, rank)
            if name:
                self._open(name)
        streams: List[Any] = []
        for pattern, stream in zip(self._patterns(rank), ("stdout", "stderr")):
            name = self._file_name(pattern, rank)
            if name is None:
                self._writers.setdefault(None, []).append((rank, stream))
                streams.append(subprocess.DEVNULL)
            elif name == "" or self._options.label:
                if name:
                    self._open(name)
                streams.append(subprocess.PIPE)
            else:
                self._writers.setdefault(Path(name), []).append((rank, stream))
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
        if self._options.error is None and self._shown_rank(self._output) is not None:
            screens[1] = screens[0]  # `srun -o 1`: all that task 1 says
        sources = zip(self._patterns(rank), (stdout, stderr), screens, ("stdout", "stderr"))
        for pattern, source, screen, stream in sources:
            if source is not None:
                name = self._file_name(pattern, rank)
                target = self._open(name) if name else screen
                unchanged = not label and self._num_tasks == 1
                copy: Callable[[], None] = functools.partial(
                    self._copy_lines, source, target, label, rank, stream
                )
                if unchanged:
                    copy = functools.partial(self._copy_bytes, source, target, rank, stream)
                thread = threading.Thread(target=copy, daemon=True)
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
        if self._listen is not None:
            for path, writers in self._writers.items():
                self._tell(self._listen, path, writers)

    def _tell(
        self, listen: Listen, path: Optional[Path], writers: Sequence[Tuple[int, str]]
    ) -> None:
        """Tells what tasks have written into a file since it was opened, or the end of that."""
        ranks = {rank for rank, _ in writers}
        rank = ranks.pop() if len(ranks) == 1 else None
        stream = "stderr" if "stderr" in {one for _, one in writers} else "stdout"
        if path is None or not path.is_file():  # such as a pipe
            listen(None, "unknown", b"")
            return
        try:
            with path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._begins.get(path, 0), end - _LONGEST_TOLD))
                text = file.read(_LONGEST_TOLD)
        except OSError:
            listen(None, "unknown", b"")
            return
        for line in text.splitlines(keepends=True):
            listen(rank, stream, line)

    @property
    def _output(self) -> str:
        return "all" if self._options.output is None else self._options.output

    def _patterns(self, rank: int) -> Tuple[str, str]:
        """Returns where a task's output and errors go.

        As with srun, errors go where the output goes, unless --error is given. One that is for all
        tasks together, as a file or none, reaches only those whose output goes to srun: a task that
        writes its output into a file of its own puts its errors there, and of `-o 1` the errors are
        those of rank 1.
        """
        output, error = self._output, self._options.error
        if error is None:
            return output, output
        if is_per_task(error) or self._shown_rank(error) is not None:
            return output, error
        if is_per_task(output):
            return output, output
        shown = self._shown_rank(output)
        return output, error if shown is None or shown == rank else "none"

    def _shown_rank(self, pattern: str) -> Optional[int]:
        """Returns the only rank whose output goes to the screen; None where it is no such rank."""
        if pattern and not (pattern.isdigit() and int(pattern) < self._num_tasks):
            return None
        return int(pattern or 0)

    def _file_name(self, pattern: str, rank: int) -> Optional[str]:
        """Returns a file's name; "" for the screen, and None where the output is discarded."""
        shown = self._shown_rank(pattern)
        if pattern.lower() == "all" or shown == rank:
            return ""
        if pattern.lower() == "none" or shown is not None:
            return None
        name = file_name(pattern, {**self._fields, "t": str(rank)})
        # A file for each task or node is opened in the tasks' directory, others in srun's own.
        opened_by_task = self._directory is not None and is_per_task(pattern)
        return os.path.join(self._directory or "", name) if opened_by_task else name

    def _open(self, name: str) -> BinaryIO:
        path = Path(name)
        if path not in self._files:
            try:
                if not self._options.append:
                    path.open("wb").close()
                # Several tasks may write to one file: each writes to its end.
                self._files[path] = path.open("ab")
                self._begins[path] = os.fstat(self._files[path].fileno()).st_size
            except OSError as error:
                raise LaunchError(
                    f"cannot write to {name!r} ({error.strerror}): expected a file name, in a "
                    "folder that exists"
                ) from None
        return self._files[path]

    def _copy_lines(
        self, source: IO[bytes], target: BinaryIO, label: bytes, rank: int, stream: str
    ) -> None:
        """Copies line by line, so that the lines of several tasks do not mix."""
        for line in iter(lambda: source.readline(_LONGEST_LINE), b""):
            if self._listen is not None:
                self._listen(rank, stream, line)
            if not self._write(target, label + line + (b"" if line.endswith(b"\n") else b"\n")):
                return
        source.close()  # else a restart would find as many files open as there were tasks

    def _copy_bytes(self, source: IO[bytes], target: BinaryIO, rank: int, stream: str) -> None:
        """Copies the output of the only task as it comes."""
        rest = b""
        for piece in iter(lambda: os.read(source.fileno(), 65_536), b""):
            if self._listen is not None:
                *lines, rest = (rest + piece).split(b"\n")
                rest = rest[-_LONGEST_LINE:]
                for line in lines:
                    self._listen(rank, stream, line)
            if not self._write(target, piece):
                return
        if rest and self._listen is not None:
            self._listen(rank, stream, rest)
        source.close()

    def _write(self, target: BinaryIO, text: bytes) -> bool:
        try:
            with self._lock:
                target.write(text)
                target.flush()
        except (BrokenPipeError, ValueError):
            return False  # the reader has gone; the task finds that out by itself
        return True
