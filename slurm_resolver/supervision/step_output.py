"""Reads what srun and its tasks print, to tell what ended a step.

srun reports each task that fails as soon as it knows. What Slurm prints (measured on 22.05, 24.11
and 26.05), in the order in which it comes:

    a task fails      srun: error: n3: task 3: Exited with exit code 5 (or the name of a signal)
                      srun: Terminating StepId=1.0      (with --kill-on-bad-exit)
                      0: … error: *** STEP 1.0 ON n2 CANCELLED AT … DUE TO TASK FAILURE ***
    a node fails      srun: error: Node failure on n3
    scancel           srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
    the time limit    as scancel

Only these lines decide who failed first. What the tasks print only describes their failure.
"""

from __future__ import annotations

import re
import signal
import time
from typing import Dict, NamedTuple, Optional, Tuple

_LONGEST_LINE = 64 * 1024  # bytes of a line that are kept
_SHOWN_LENGTH = 300
_PROGRESS = "training resumes from "  # printed by BackupAndResume and ResumableLoop

_LABEL = re.compile(r" *(\d{1,7}): ?(.*)", re.S)  # of srun --label
# The node is missing where tasks of several ended alike: "n[8-9]: tasks 0-1".
_TASK = re.compile(r"srun: error: (?:([\w.-]+)|[\w.,\[\]-]+): tasks? (\d+)[\d,-]*: (.+)")
_NODE = re.compile(
    r"srun: error: (?:Node failure on |Task launch for \S+ failed on node )([\w.-]+)(?:: (.*))?"
)
_SIGNALS = {str(signal.strsignal(number)): number for number in signal.Signals}

# addresses, times, ports, process and step ids: they differ between failures of the same cause
_NOT_COMPARED = re.compile(
    r"0x[0-9a-fA-F]+|\b(\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d[.\d]*"
    r"|(?<=[\w\]]):\d{4,5}\b|(?i:\bpid[ =]\d+)|StepId=\S+"
)


class StepFailure(NamedTuple):
    """Why a step has ended.

    Attributes:
        kind: "task"; "node" (it failed, or could not start its tasks); "cancelled" (somebody ended
            the step); "srun" (it could not start the step).
        status: the exit status of the task, or 128 and the number of its signal; else srun's own.
        at: when srun reported it, in seconds since 1970.
        signal: what ended the task, such as "SIGKILL".
        line: the error that the task printed; for a node or srun itself, srun's words.
        progress: the line in which the training said which checkpoint it continues from.
    """

    kind: str
    status: int
    at: float
    rank: Optional[int] = None
    node: Optional[str] = None
    signal: Optional[str] = None
    line: Optional[str] = None
    progress: Optional[str] = None

    def describe(self) -> str:
        """Returns who failed first, when and why: rank 3 on n2 at 2026-02-03T04:05:06, SIGKILL."""
        ended = self.signal or f"exit status {self.status}"
        if self.kind == "task":
            who, how = f"rank {self.rank}" + (f" on {self.node}" if self.node else ""), ended
        elif self.kind == "node":
            who, how = f"node {self.node}", "node failure"
        else:
            who, how = ("srun", ended) if self.kind == "srun" else ("the step", "cancelled")
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(self.at))
        why = f": {self.line.rstrip(' :')}" if self.line else ""
        return f"{who} at {when}, {how}{why}"

    def is_same(self, other: StepFailure) -> bool:
        """Whether both are the same error, as far as their output shows."""
        return self._compared() == other._compared()

    def _compared(self) -> Tuple[object, ...]:
        # All ranks may have one error, and any may be the first. A signal is for one rank.
        rank = self.rank if self.signal else None
        line = None if self.line is None else _NOT_COMPARED.sub("", self.line)
        return self.kind, self.status, rank, line, self.node if self.kind == "node" else None


class StepOutput:
    """Reads what srun and its tasks print while it is passed on.

    Attributes:
        ending: whether srun, or somebody else, already ends the tasks.
        failed: the task that failed first, as soon as srun has reported it.
        lost: the node that failed.
    """

    def __init__(self) -> None:
        self.ending = False
        self.failed: Optional[StepFailure] = None
        self.lost: Optional[StepFailure] = None
        self._parts = {"stdout": b"", "stderr": b""}
        self._progress: Optional[str] = None
        # by rank, None without a label: the line after its last traceback, its last on stderr
        self._errors: Dict[Optional[int], str] = {}
        self._last: Dict[Optional[int], str] = {}
        self._in_traceback: Dict[Optional[int], bool] = {}
        self._cancelled: Optional[float] = None
        self._last_error: Optional[str] = None  # of srun

    def feed(self, stream: str, data: bytes) -> None:
        """Takes the next bytes of the stream "stdout" or "stderr"."""
        *lines, rest = (self._parts[stream] + data).split(b"\n")
        self._parts[stream] = rest[-_LONGEST_LINE:]
        for line in lines:
            text = line[-_LONGEST_LINE:].decode(errors="replace")
            if stream == "stderr" and text.startswith("srun: "):
                self._read_srun(text.strip())
                continue
            label = _LABEL.match(text)
            rank, text = (int(label[1]), label[2]) if label else (None, text)
            self._read_task(rank, stream, text)

    def _read_task(self, rank: Optional[int], stream: str, text: str) -> None:
        text = text.rstrip().rpartition("\r")[2]  # of a progress bar what it ends with
        if _PROGRESS in text:
            self._progress = text[text.index(_PROGRESS) :]
        if text.startswith("Traceback (most recent call last)"):
            self._in_traceback[rank] = True
        elif self._in_traceback.get(rank) and text and not text[0].isspace():
            self._errors[rank], self._in_traceback[rank] = text, False
        elif stream == "stderr" and text.strip() and "CANCELLED AT" not in text:
            self._last[rank] = text.strip()

    def _read_srun(self, line: str) -> None:
        now = time.time()
        task, node = _TASK.match(line), _NODE.match(line)
        if "Job step aborted" in line and self.failed is None:
            self._cancelled = self._cancelled or now
        self.ending = self.ending or "Job step aborted" in line or "Terminating StepId" in line
        if line.startswith("srun: error: "):
            self._last_error = line[len("srun: error: ") :]
        if node is not None:
            self.lost = self.lost or StepFailure("node", 1, now, node=node[1], line=node[2])
        elif task is not None and self.failed is None:
            status, name = _read_end(task[3])
            self.failed = StepFailure("task", status, now, int(task[2]), task[1], name)

    def failure(self, status: int) -> StepFailure:
        """Returns why the step has ended with this status of srun, which is not 0."""
        for stream in self._parts:
            self.feed(stream, b"\n")
        # Tasks often fail because of a node of which Slurm learns later: it is the cause then.
        if self.lost is not None:
            failure = self.lost
        elif self._cancelled is not None:
            failure = StepFailure("cancelled", status, self._cancelled)
        elif self.failed is not None:
            failure = self.failed._replace(line=self._find_error(self.failed))
        else:
            failure = StepFailure("srun", status, time.time(), line=self._last_error)
        return failure._replace(progress=self._progress)

    def _find_error(self, failure: StepFailure) -> Optional[str]:
        # Without a traceback it is the last line on stderr, except after a signal.
        found = {**self._last, **self._errors} if failure.signal is None else self._errors
        line = found.get(failure.rank, found.get(None))
        return line if line is None or len(line) <= _SHOWN_LENGTH else f"{line[:_SHOWN_LENGTH]} …"


def _read_end(text: str) -> Tuple[int, Optional[str]]:
    """Returns the status and the signal of a task, as srun reports how it ended."""
    exited = re.match(r"Exited with exit code (\d+)", text)
    if exited:
        return int(exited[1]), None
    if text.startswith("Out Of Memory"):
        return 128 + signal.SIGKILL, "SIGKILL (out of memory)"
    number = _SIGNALS.get(text.replace(" (core dumped)", ""))
    return (1, text) if number is None else (128 + number, number.name)
