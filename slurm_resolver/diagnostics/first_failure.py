"""Which task of a run failed first, by the logs that its tasks have left.

A task fails by a Python error, whose traceback ends its output, or srun tells how it ended. The
others then fail because of it: with errors of calls to it, or as srun ends them.

In one log the order of the lines is that of time. Several logs are compared by the last time that
stands in a line before, as far as the clocks of the nodes agree.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

# What is seen in a task because another one, or a connection to it, has failed.
_FOLLOWS = {
    *("task-unhealthy", "leader-lost", "barrier-failed", "peer-refused", "peer-unreachable"),
    *("peer-closed", "parameter-server-lost", "worker-lost", "peer-call-failed", "session-waits"),
    *("tasks-missing", "deadline-exceeded", "collective-aborted", "fit-failed", "cancelled"),
    *("rendezvous-error", "task-restarted"),
}
# TensorFlow's errors of calls to another task.
_CALL_ERRORS = re.compile(r"errors_impl\.(?:Unavailable|Aborted|Cancelled|DeadlineExceeded)Error:")
_MOST_LINES_AFTER = 200  # of a task, after the error that has ended it; TensorFlow's may be long
_LONGEST = 2000  # characters of a line that are looked at
_LABEL = re.compile(r" *(\d{1,7}): ?")  # of srun --label
# The node is None where tasks of several have ended alike: "n[8-9]: tasks 0-1".
_TASK_END = re.compile(r"srun: error: (?:([\w.-]+)|[\w.,\[\]-]+): tasks? ((\d+)[\d,-]*): (.+)")
_NODE = re.compile(r"srun: error: Node failure on ([\w.-]+)")
_ENDS_ALL = re.compile(
    r"srun: (?:Terminating |Job step aborted)|.{0,80}\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT "
)
_TRACEBACK = "Traceback (most recent call last)"
_TIME = re.compile(
    r"\[?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)"  # TensorFlow, and most loggers of Python
    r"|[IWEF]\d{4} \d\d:\d\d:(\d{9,10})\.\d"  # absl before it is initialized: since 1970
)


class Failure(NamedTuple):
    """How a task has failed.

    Attributes:
        task: its rank, and its node where srun has told it; '' where nothing tells.
        line_number: of `line`, from 1.
        line: the error.
        time: the last time that the task's log tells before, in seconds since 1970.
        follows: whether it is an effect of another task's failure, as far as is known.
    """

    task: str
    line_number: int
    line: str
    time: Optional[float] = None
    follows: bool = False


@dataclass
class _Task:
    """What was read of one task: its last time, and the error that its last traceback ends with."""

    time: Optional[float] = None
    in_traceback: bool = False
    error: Optional[Failure] = None
    lines_after: int = 0

    def read(self, number: int, text: str) -> None:
        self.time = _read_time(text) or self.time
        self.lines_after += 1
        if text.startswith(_TRACEBACK):
            self.in_traceback = True
        elif self.in_traceback and text and not text[0].isspace():
            self.in_traceback = False
            self.error, self.lines_after = Failure("", number, text.rstrip(), self.time), 0


class FailureReader:
    """Reads a log, line by line, to tell which of its tasks failed first."""

    def __init__(self) -> None:
        self._tasks: Dict[str, _Task] = {}  # by rank; '' without a label
        self._ends: Dict[str, Failure] = {}  # by rank, as srun tells them
        self._node: Optional[Failure] = None  # the first that failed
        self._all_end = False  # srun, or somebody else, ends all tasks
        self._last_number = 0

    def read(self, number: int, text: str) -> None:
        """Takes a line, or the first piece of a long one; further pieces are not looked at."""
        if number == self._last_number:
            return
        self._last_number = number
        text = text[:_LONGEST]
        if _ENDS_ALL.match(text):
            self._all_end = True
        if text.startswith("srun: "):
            if not self._all_end:
                self._read_end(number, text.rstrip())
            return
        label = _LABEL.match(text)
        task = self._tasks.setdefault(label[1] if label else "", _Task())
        task.read(number, text[label.end() :] if label else text)

    def _read_end(self, number: int, text: str) -> None:
        end, node = _TASK_END.match(text), _NODE.match(text)
        if node and self._node is None:
            self._node = Failure(f"node {node[1]}", number, "Node failure")
        if end:
            rank = end[3]
            where = f"rank {rank} on {end[1]}" if end[1] else f"rank {rank}"
            task = self._tasks.get(rank)
            failure = Failure(where, number, end[4], task.time if task else None)
            self._ends.setdefault(rank, failure)

    def first(self) -> Optional[Failure]:
        """Returns the failure of the task that failed first; None where none did."""
        told = [self._node] if self._node else []
        for rank, task in self._tasks.items():
            if task.error is not None and task.lines_after <= _MOST_LINES_AFTER:
                told.append(self._with_task(rank, task.error))
        with_error = {rank for rank, task in self._tasks.items() if task.error is not None}
        if "" not in with_error:
            told += [end for rank, end in self._ends.items() if rank not in with_error]
        return min(told, key=lambda failure: (failure.follows, failure.line_number), default=None)

    def _with_task(self, rank: str, error: Failure) -> Failure:
        if not rank and len(self._ends) == 1:
            (rank,) = self._ends
        where = self._ends[rank].task if rank in self._ends else f"rank {rank}" if rank else ""
        return error._replace(task=where, follows=follows_another(error.line))


def first_of(failures: Sequence[Optional[Failure]]) -> List[int]:
    """Returns the numbers of logs, that of the task that failed first before the others.

    Args:
        failures: the first failure in each log.
    """

    def order(number: int) -> Tuple[bool, bool, float]:
        failure = failures[number] or Failure("", 0, "", follows=True)
        return failure.follows, failure.time is None, failure.time or 0.0

    return sorted(range(len(failures)), key=order)


def follows_another(line: str) -> bool:
    """Whether an error is the effect of another task's failure, as far as is known."""
    from slurm_resolver.diagnostics.log_messages import explain

    found = {finding.id for finding in explain([line])}
    return bool(found & _FOLLOWS or (not found and _CALL_ERRORS.search(line)))


def _read_time(text: str) -> Optional[float]:
    match = _TIME.match(text)
    if match is None:
        return None
    date, clock, epoch = match.groups()
    if epoch is not None:
        return float(epoch)
    try:
        return time.mktime(time.strptime(f"{date} {clock}", "%Y-%m-%d %H:%M:%S"))
    except (ValueError, OverflowError):  # not a day of the calendar
        return None
