"""Reads what srun and its tasks print, to tell what ended a step.

srun reports each task that fails as soon as it knows. What Slurm prints (measured on 22.05, 24.11
and 26.05), in the order in which it comes:

    a task fails      srun: error: n3: task 3: Exited with exit code 5 (or the name of a signal)
                      srun: Terminating StepId=1.0      (with --kill-on-bad-exit)
                      0: … error: *** STEP 1.0 ON n2 CANCELLED AT … DUE TO TASK FAILURE ***
    a node fails      srun: error: Node failure on n3
    scancel           srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
    the time limit    as scancel, and *** STEP 1.0 ON n2 CANCELLED AT … DUE TO TIME LIMIT ***

Only these lines decide who failed first. What the tasks print only describes their failure.
"""

from __future__ import annotations

import re
import signal
import time
from typing import Dict, Optional, Tuple

from slurm_resolver.diagnostics.first_failure import TASK_END, TRACEBACK
from slurm_resolver.supervision.failure import Failure
from slurm_resolver.supervision.passed_on import RankLogs, split_label

_LONGEST_PART = 1024 * 1024  # of a line without an end
_LONGEST_LINE = 1000  # bytes of a line that are read
_SHOWN_LENGTH = 300
_PROGRESS = "training goes on from "  # printed by BackupAndResume and ResumableLoop

_ENDED_BY = re.compile(r"\*\*\* STEP \S+ ON \S+ CANCELLED AT \S+ DUE TO (TIME LIMIT|PREEMPTION) ")
_EXIT_STATUS = re.compile(r"Exited with exit code (\d+)")
_NODE = re.compile(
    r"srun: error: (?:Node failure on |Task launch for \S+ failed on node )([\w.-]+)(?:: (.*))?"
)
_SIGNALS: Dict[str, signal.Signals] = {
    str(signal.strsignal(number)): number for number in signal.Signals
}


class TaskOutput:
    """What tasks print about themselves.

    Attributes:
        progress: the line in which the training said which checkpoint it continues from.
    """

    def __init__(self) -> None:
        self.progress: Optional[str] = None
        # by rank, None without a label: the line after its last traceback, its last on stderr
        self._errors: Dict[Optional[int], str] = {}
        self._last: Dict[Optional[int], str] = {}
        self._in_traceback: Dict[Optional[int], bool] = {}

    def read(self, rank: Optional[int], stream: str, text: str) -> None:
        """Reads a line of a task."""
        text = text.rstrip().rpartition("\r")[2]  # of a progress bar what it ends with
        if _PROGRESS in text:
            self.progress = text[text.index(_PROGRESS) :]
        if text.startswith(TRACEBACK):
            self._in_traceback[rank] = True
        elif self._in_traceback.get(rank) and text and not text[0].isspace():
            self._errors[rank], self._in_traceback[rank] = text, False
        elif stream == "stderr" and text.strip() and "CANCELLED AT" not in text:
            self._last[rank] = text.strip()

    def describe(self, failure: Failure) -> Failure:
        """Returns a task's failure with its error, and with the training's progress.

        Without a traceback the last line on stderr is the error, except after a signal.
        """
        from slurm_resolver.diagnostics.log_messages import explain  # slow to import

        ranks = (failure.rank, None)
        line = next((self._errors[rank] for rank in ranks if rank in self._errors), None)
        if line is None and failure.signal is None:
            line = next((self._last[rank] for rank in ranks if rank in self._last), None)
        findings = explain([line]) if line else []
        if line is not None and len(line) > _SHOWN_LENGTH:
            line = f"{line[:_SHOWN_LENGTH]} …"
        cause = findings[0].cause if findings else None
        return failure._replace(line=line, cause=cause, progress=self.progress)


class StepOutput:
    """Reads what srun and its tasks print while it is passed on.

    Attributes:
        ending: whether srun, or somebody else, already ends the tasks.
        failed: the task that failed first, as soon as srun has reported it.
        lost: the node that failed.
    """

    def __init__(self, logs: Optional[RankLogs] = None) -> None:
        """Prepares it; `logs` get each line as well."""
        self.ending = False
        self.failed: Optional[Failure] = None
        self.lost: Optional[Failure] = None
        self._logs = logs
        self._parts = {"stdout": b"", "stderr": b""}
        self._tasks = TaskOutput()
        self._cancelled: Optional[float] = None
        self._ended_by: Optional[str] = None  # why Slurm ended the step
        self._last_error: Optional[str] = None  # of srun

    def feed(self, stream: str, data: bytes) -> None:
        """Takes the next bytes of the stream "stdout" or "stderr"; none are its end."""
        *lines, rest = (self._parts[stream] + data).split(b"\n")
        if rest and (not data or len(rest) > _LONGEST_PART):
            lines, rest = [*lines, rest], b""
        self._parts[stream] = rest
        if self._logs is not None:
            self._logs.write(lines)
        for line in lines:
            text = (line[:20] + line[20:][-_LONGEST_LINE:]).decode(errors="replace")
            if stream == "stderr" and text.startswith("srun: "):
                self._read_srun(text.strip())
            else:
                self._read_task(stream, text)

    def _read_task(self, stream: str, line: str) -> None:
        rank, text = split_label(line)
        ended_by = _ENDED_BY.search(text)
        if ended_by is not None:
            self._ended_by = ended_by[1].lower()
        self._tasks.read(rank, stream, text)

    def _read_srun(self, line: str) -> None:
        now = time.time()
        task, node = TASK_END.match(line), _NODE.match(line)
        if "Job step aborted" in line and self.failed is None:
            self._cancelled = self._cancelled or now
        self.ending = self.ending or "Job step aborted" in line or "Terminating StepId" in line
        if line.startswith("srun: error: "):
            self._last_error = line[len("srun: error: ") :]
        if node is not None:
            self.lost = self.lost or Failure("node", 1, now, node=node[1], line=node[2])
        elif task is not None and self.failed is None:
            status, name = _end(task[4])
            self.failed = Failure("task", status, now, int(task[3]), task[1], name)

    def failure(self, status: int) -> Failure:
        """Returns why the step has ended with this status of srun, which is not 0."""
        progress = self._tasks.progress
        # Tasks often fail because of a node of which Slurm learns later: it is the cause then.
        if self.lost is not None:
            return self.lost._replace(progress=progress)
        if self._cancelled is not None:
            failure = Failure("cancelled", status, self._cancelled, line=self._last_error)
            return failure._replace(cause=self._ended_by, progress=progress)
        if self.failed is None:
            return Failure("srun", status, time.time(), line=self._last_error, progress=progress)
        return self._tasks.describe(self.failed)


def _end(text: str) -> Tuple[int, Optional[str]]:
    """Returns the status and the signal of a task, as srun reports how it ended."""
    exited = _EXIT_STATUS.match(text)
    if exited:
        return int(exited[1]), None
    if text.startswith("Out Of Memory"):
        return 128 + signal.SIGKILL, "SIGKILL (out of memory)"
    number = _SIGNALS.get(text.replace(" (core dumped)", ""))
    return (1, text) if number is None else (128 + number, number.name)
