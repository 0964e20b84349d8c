"""One start of a step: srun as a child process, and what its output says about its end.

Only the lines that srun prints decide which task failed first. What the task prints describes its
failure.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from types import FrameType
from typing import NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.diagnostics.first_failure import FailureReader
from slurm_resolver.errors import LaunchError
from slurm_resolver.preemption.requeue import REQUEUE_STATUS, TERMINATED_STATUS

_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_POLL_SECONDS = 0.2
_PIECE = 64 * 1024
_END_SECONDS = 2.0  # how long srun has to end the other tasks by itself once one has failed

_SHOWN_LENGTH = 300
_PROGRESS = "training resumes from "  # printed by BackupAndResume and ResumableLoop
_SRUN_ERROR = "srun: error: "
_NUMBERS = {str(signal.strsignal(number)): number for number in signal.Signals}


def _write(data: bytes) -> None:
    """Writes to standard error; a full disk must not end a training."""
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(2, view) :]


def say(line: str) -> None:
    """Prints a line for the user, in one write, as tasks may print at the same time."""
    _write(f"slurm-resolver supervise: {line}\n".encode(errors="backslashreplace"))


class Signals:
    """Records the signals to this process, passes them on to srun, and ends waits.

    srun gives SIGUSR1 and SIGUSR2 to all tasks, and kills them on SIGTERM.
    """

    def __init__(self) -> None:
        self.received: Optional[signal.Signals] = None  # the first of them
        self._process: Optional[subprocess.Popen[bytes]] = None
        for name in _SIGNALS:
            signal.signal(signal.Signals[name], self._handle)

    def _handle(self, number: int, frame: Optional[FrameType]) -> None:
        self.received = self.received or signal.Signals(number)
        # A terminal sends Ctrl-C to srun as well, and a second one makes it abort the step.
        if self._process is not None and (number != signal.SIGINT or not os.isatty(0)):
            self._process.send_signal(number)

    def pass_on_to(self, process: Optional[subprocess.Popen[bytes]]) -> None:
        """Passes signals on to this process, also one that came while it was being started."""
        self._process = process
        if process is not None and self.received is not None:
            self._handle(self.received, None)

    def wait(self, seconds: float) -> None:
        """Waits for this time, or until a signal has come."""
        until = time.monotonic() + seconds
        while self.received is None and time.monotonic() < until:
            time.sleep(min(_POLL_SECONDS, seconds))


class StepFailure(NamedTuple):
    """Why a step has ended.

    Attributes:
        kind: "task"; "saved" (a task ended after a signal, or asks for a requeue); "node" (it
            failed, or could not start its tasks); "cancelled" (somebody ended the step); "srun" (it
            could not start the step).
        who: the task, node or program that failed first.
        how: its exit status, or what ended it.
        status: the exit status of the task, or 128 and the number of its signal; else srun's own.
        at: when srun reported it, in seconds since 1970.
        seconds: how long the step has run.
        node: the node, if it is known.
        line: the error that the task printed; for a node or srun itself, srun's words.
        progress: the line in which the training said from which checkpoint it resumes.
    """

    kind: str
    who: str
    how: str
    status: int
    at: float
    seconds: float
    node: Optional[str] = None
    line: Optional[str] = None
    progress: Optional[str] = None

    def describe(self) -> str:
        """Returns who failed first, when and why: rank 3 on n2 at 2026-02-03T04:05:06, SIGKILL."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(self.at))
        why = f": {self.line.rstrip(' :')[:_SHOWN_LENGTH]}" if self.line else ""
        return f"{self.who} at {when}, {self.how}{why}"

    def is_same(self, other: StepFailure) -> bool:
        """Whether both are the same error, as far as the output shows.

        All ranks may have one error, and any may be the first. Without an error in the output, only
        the same task has failed in the same way.
        """
        one, another = (
            (it.kind, it.how, it.line, None if it.line else it.who) for it in (self, other)
        )
        return one == another


class StepOutput:
    """Reads what srun and its tasks write to standard error, while it is passed on."""

    def __init__(self) -> None:
        self._reader = FailureReader()
        self._rest = b""
        self._number = 0  # of lines
        self._begun = time.monotonic()
        self._at: Optional[float] = None  # when the first failure was reported
        self._progress: Optional[str] = None
        self._srun_error: Optional[str] = None  # the last one

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").rstrip().rpartition("\r")[2]
            self._number += 1
            self._reader.read(self._number, text)
            if _PROGRESS in text:
                self._progress = text[text.index(_PROGRESS) :]
            if text.startswith(_SRUN_ERROR):
                self._srun_error = text[len(_SRUN_ERROR) :]
        reader = self._reader
        if self._at is None and (reader.node or reader.ends or reader.all_end):
            self._at = time.time()

    @property
    def leaves_tasks(self) -> bool:
        """Whether a task or a node has failed, and srun may leave the other tasks running."""
        reader = self._reader
        ends = list(reader.ends.values())
        failed = bool(ends) and _read_end(ends[0].line)[0] == "task"
        return reader.node is not None or (failed and not reader.all_end)

    def failure(self, status: int) -> StepFailure:
        """Returns why the step has ended with this status of srun, which is not 0."""
        self.feed(b"\n")
        reader = self._reader
        kind, who, how = "srun", "srun", f"exit status {status}"
        node, line = None, self._srun_error
        # Tasks often fail because of a node of which Slurm learns later: it is the cause then.
        if reader.node is not None:
            kind, who, how, status = "node", reader.node.task, reader.node.line, 1
            node, line = reader.node.node, None
        elif reader.ends:
            rank, end = next(iter(reader.ends.items()))
            kind, how, status = _read_end(end.line)
            error = reader.error_of(rank)
            who, node, line = end.task, end.node, error.line if error else None
        elif reader.all_end:
            kind, who, how, line = "cancelled", "the step", "cancelled", None
        seconds = time.monotonic() - self._begun
        at = self._at or time.time()
        return StepFailure(kind, who, how, status, at, seconds, node, line, self._progress)


def _read_end(text: str) -> Tuple[str, str, int]:
    """Returns the kind, the words and the status of a task's end, as srun reports it."""
    exited = re.match(r"Exited with exit code (\d+)", text)
    if exited:
        status = int(exited[1])
        saved = status in (REQUEUE_STATUS, TERMINATED_STATUS)
        return "saved" if saved else "task", f"exit status {status}", status
    if text.startswith("Out Of Memory"):
        return "task", "SIGKILL (out of memory)", 128 + signal.SIGKILL
    number = _NUMBERS.get(text.replace(" (core dumped)", ""))
    return ("task", text, 1) if number is None else ("task", number.name, 128 + number)


def run_step(command: Sequence[str], signals: Signals) -> Tuple[int, StepOutput]:
    """Runs srun to its end, and returns its exit status and its output.

    If a task or a node has failed, and srun does not end the other tasks, this does.

    Raises:
        LaunchError: if srun cannot be started.
    """
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
    except OSError as error:
        raise LaunchError(f"{command[0]!r} cannot be started here ({error.strerror})") from error
    output = StepOutput()

    def end_tasks() -> None:
        if output.leaves_tasks:
            process.terminate()

    ending: Optional[threading.Timer] = None
    signals.pass_on_to(process)
    with process:
        assert process.stderr is not None
        stderr = process.stderr.fileno()
        for data in iter(lambda: os.read(stderr, _PIECE), b""):
            _write(data)
            output.feed(data)
            if ending is None and output.leaves_tasks:
                ending = threading.Timer(_END_SECONDS, end_tasks)
                ending.daemon = True
                ending.start()
        status = process.wait()
    signals.pass_on_to(None)
    return status if status >= 0 else 128 - status, output
