"""Finds the task of a run that failed first, in the logs of its tasks.

A task fails with a Python error, whose traceback ends its output, or srun, `slurm-resolver run` or
another task reports how it ended. The other tasks then fail because of it: their calls to it fail,
or srun ends them. What Slurm 22.05, 24.11 and 26.05 print, in this order:

    a task fails      srun: error: n3: task 3: Exited with exit code 5 (or the name of a signal)
                      srun: Terminating StepId=1.0      (with --kill-on-bad-exit)
                      0: … error: *** STEP 1.0 ON n2 CANCELLED AT … DUE TO TASK FAILURE ***
    a node fails      srun: error: Node failure on n3
    scancel           srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
    the time limit    as scancel

Lines of one log are in the order of time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from slurm_resolver.diagnostics.log_messages import explain

# Messages in a task about the failure of another task, or of a connection to it.
_FOLLOWS = {
    "task-unhealthy",
    "leader-lost",
    "leader-not-started",
    "barrier-failed",
    "peer-refused",
    "peer-ended",
    "peer-unreachable",
    "peer-closed",
    "parameter-server-lost",
    "worker-lost",
    "peer-call-failed",
    "session-waits",
    "tasks-missing",
    "deadline-exceeded",
    "task-gone",
    "collective-aborted",
    "fit-failed",
    "cancelled",
    "rendezvous-error",
    "task-restarted",
    "task-not-started",
}
# TensorFlow's errors of calls to another task.
_CALL_ERRORS = re.compile(r"errors_impl\.(?:Unavailable|Aborted|Cancelled|DeadlineExceeded)Error:")
_MOST_LINES_AFTER = 200  # a task may write after its last error; TensorFlow's own may be long
_LONGEST = 2000  # characters of a line that are read
_LABEL = re.compile(r" *(\d{1,7}): ?")  # of --label
# The node is None if tasks of several nodes ended alike: "n[8-9]: tasks 0-1".
_TASK_END = re.compile(
    r"srun: error: (?:(?P<node>[\w.-]+)|[\w.,\[\]-]+): tasks? (?P<rank>\d+)[\d,-]*: (?P<how>.+)"
)
_RUN_END = re.compile(
    r"slurm-resolver run: task (?P<rank>\d+) (?:ended with|was ended by) (?P<how>.+?)(?:; ending|$)"
)
# A task that this package reports to the others.
_GONE = re.compile(r".*\(rank (\d+) on (\S+)\) (?:is gone|is lost|has failed)[^:]*: (.+)")
_NODE = re.compile(
    r"srun: error: (?:Node failure on |Task launch for \S+ failed on node )([\w.-]+)(?:: (.*))?"
)
_ENDS_ALL = re.compile(
    r"srun: (?:Terminating |Job step aborted)|.{0,80}\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT "
)
_TRACEBACK = "Traceback (most recent call last)"


class Failure(NamedTuple):
    """How a task failed.

    Attributes:
        task: its rank, with its node if known; a node; '' if the log does not say.
        line_number: the number of `line`, from 1.
        line: the error.
        follows: whether another task's failure caused it, as far as is known.
        node: the node, where srun names it.
    """

    task: str
    line_number: int
    line: str
    follows: bool = False
    node: str | None = None


@dataclass
class _Task:
    """The error at the end of a task's last traceback."""

    in_traceback: bool = False
    error: Failure | None = None
    lines_after: int = 0

    def read(self, number: int, text: str) -> None:
        self.lines_after += 1
        if text.startswith(_TRACEBACK):
            self.in_traceback = True
        elif self.in_traceback and text and not text[0].isspace():
            self.in_traceback = False
            self.error = Failure("", number, text)
            self.lines_after = 0


class FailureReader:
    """Reads a log, line by line, and finds the first failure of its tasks.

    Attributes:
        ends: how tasks ended, as the launcher reports it, by rank; the first to fail comes first.
        node: the first node that failed.
        all_end: whether srun, or somebody else, ends all tasks.
    """

    def __init__(self) -> None:
        self.ends: dict[str, Failure] = {}
        self.node: Failure | None = None
        self.all_end = False
        self._tasks: dict[str, _Task] = {}  # by rank; '' without a label
        self._gone: dict[str, Failure] = {}  # by rank, as this package reports them
        self._number = 0  # of lines

    def read(self, text: str) -> None:
        """Reads the next line, or the first piece of a long line."""
        self._number += 1
        text = text[:_LONGEST].rstrip()
        if _ENDS_ALL.match(text):
            self.all_end = True
        if text.startswith(("srun: ", "slurm-resolver run: ")):
            self._read_launcher(text)
            return
        label = _LABEL.match(text)
        task = self._tasks.setdefault(label[1] if label else "", _Task())
        # A progress bar may end without a line's end.
        task.read(self._number, (text[label.end() :] if label else text).rpartition("\r")[2])
        gone = _GONE.match(text)
        if gone:
            rank, node, why = gone.groups()
            self._gone.setdefault(
                rank, Failure(_place(rank, node), self._number, why, follows_another(why))
            )

    def _read_launcher(self, text: str) -> None:
        number = self._number
        node = _NODE.match(text)
        end = _TASK_END.match(text) or _RUN_END.match(text)
        if node and self.node is None:
            self.node = Failure(f"node {node[1]}", number, node[2] or "node failure", node=node[1])
        elif end and not self.all_end:
            rank = end["rank"]
            name = end.groupdict().get("node")
            self.ends.setdefault(rank, Failure(_place(rank, name), number, end["how"], node=name))

    def error_of(self, rank: str) -> Failure | None:
        """Returns the error that this rank has printed, or any task in a log without labels."""
        task = self._tasks.get(rank) or self._tasks.get("")
        return task.error if task else None

    def first(self) -> Failure | None:
        """Returns the failure of the task that failed first; None if no task failed."""
        failures = [self.node] if self.node else []
        with_error = set()  # the ranks; '' without a label
        for rank, task in self._tasks.items():
            error = task.error
            if error is None:
                continue
            with_error.add(rank)
            if task.lines_after > _MOST_LINES_AFTER:
                continue
            if not rank and len(self.ends) == 1:
                (rank,) = self.ends
            report = self._gone.get(rank) or self.ends.get(rank)
            place = report.task if report else _place(rank)
            failures.append(error._replace(task=place, follows=follows_another(error.line)))
        reports = dict(self._gone)
        for rank, end in self.ends.items() if "" not in with_error else ():
            gone = reports.setdefault(rank, end)  # the launcher knows how, but may report later
            reports[rank] = end._replace(
                task=gone.task, line_number=min(gone.line_number, end.line_number)
            )
        failures += [report for rank, report in reports.items() if rank not in with_error]
        return min(failures, key=lambda one: (one.follows, one.line_number), default=None)


def _place(rank: str, node: str | None = None) -> str:
    return f"rank {rank}" + (f" on {node}" if node else "") if rank else ""


def follows_another(line: str) -> bool:
    """Returns whether another task's failure caused an error, as far as is known."""
    found = {finding.id for finding in explain([line])}
    return bool(found & _FOLLOWS or (not found and _CALL_ERRORS.search(line)))
