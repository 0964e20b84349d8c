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

from slurm_resolver.diagnostics.known_messages import MESSAGES
from slurm_resolver.diagnostics.log_messages import MessageReader, search

# TensorFlow's errors of calls to another task.
_CALL_ERRORS = re.compile(r"errors_impl\.(?:Unavailable|Aborted|Cancelled|DeadlineExceeded)Error:")
_MOST_LINES_AFTER = 200  # a task may write after its last error; TensorFlow's own may be long
_LONGEST = 2000  # characters of a line that are read
_LABEL = re.compile(r"^ *(\d{1,7}): ?")  # of --label
# The last line of a traceback: the class of the error, which has a dot or a capital letter. srun
# --label may cut the indentation of the lines of code above it, and of those that underline them.
_ERROR = re.compile(r"(?=[\w.<>]*[A-Z.])[A-Za-z_][\w.<>]*(?::? *$|: )")
# Below "Graph execution error:", TensorFlow gives places in the program, and then the reason.
_PLACE = re.compile(
    r"\s*$|Detected at node|Defined at|Node: |<stack traces|\d+ root error"
    r'|\s*File "|\s+(?!\s|\(0\) )'
)
_DUMP = re.compile(r"\s*(?:\}|[a-z_]+ \{|[a-z_]+: \S|$)")  # of a graph, of any length
# How a task ended. The node is None in `slurm-resolver run`, and if tasks of several nodes ended
# alike: "n[8-9]: tasks 0-1".
_TASK_END = re.compile(
    r"(?:srun: error: (?:([\w.-]+)|[\w.,\[\]-]+): tasks?|slurm-resolver run: task) "
    r"(\d+)(?:[\d,-]*:| ended with| was ended by) (.+?)(?:; ending|$)"
)
# A task that this package reports to the others.
_GONE = re.compile(r".*\(rank (\d+) on (\S+)\) (?:is gone|is lost|has failed)[^:]*: (.+)")
_NODE = re.compile(
    r"srun: error: (?:Node failure on |Task launch for \S+ failed on node )([\w.-]+)(?:: (.*))?"
)
_ENDS_ALL = re.compile(
    r"srun: (?:\S+: \w+: )?(?:Terminating (?:StepId=|job step )(\d+)|Job step aborted)"
    r"|.{0,80}\*\*\* (?:STEP|JOB) (\d+)\S* ON \S+ CANCELLED AT "
)
_SAVED = re.compile(r"(?:Exited with exit code|exit status) (?:75|(143))\b")


class Failure(NamedTuple):
    """How a task failed.

    Attributes:
        task: its rank, with its node if known; a node; '' if the log does not say.
        line_number: the number of `line`, from 1.
        line: the error.
        follows: whether another task's failure caused it, as far as is known.
        node: the node, where srun names it.
        is_end: whether `line` only says how the task ended, in the launcher's words.
    """

    task: str
    line_number: int
    line: str
    follows: bool = False
    node: str | None = None
    is_end: bool = False


@dataclass
class _Task:
    """The error at the end of a task's last traceback."""

    in_traceback: bool = False
    error: Failure | None = None
    reason_follows: bool = False
    lines_after: int = 0


class FailureReader(MessageReader):
    """Reads the log of one start, line by line, and finds the first failure of its tasks.

    Attributes:
        ends: how tasks ended, as the launcher reports it, by rank; the first to fail comes first.
        node: the first node that failed.
        all_end: whether srun, or somebody else, ends all tasks.
        job: the id of the Slurm job, if the log tells it.
    """

    node: Failure | None = None
    all_end = False
    job: str | None = None
    _number = 0  # of lines

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[str, Failure] = {}
        self._tasks: dict[str, _Task] = {}  # by rank; '' without a label
        self._gone: dict[str, Failure] = {}  # by rank, as this package reports them

    def read(self, text: str, number: int = 0) -> None:
        """Reads the next line, or the first piece of a long line; `number` is the line's."""
        self._number = number or self._number + 1
        super().read(text, self._number)
        text = text[:_LONGEST].rstrip()
        ends_all = _ENDS_ALL.match(text)
        if ends_all:
            self.all_end = True
            self.job = self.job or ends_all[1] or ends_all[2]
        if text.startswith(("srun: ", "slurm-resolver run: ", "slurm-resolver supervise: ")):
            failed = _NODE.match(text)
            end = _TASK_END.match(text)
            if failed and self.node is None:
                node, why = failed.groups("node failure")
                self.node = Failure(f"node {node}", self._number, why, node=node, is_end=True)
            elif end and not self.all_end:
                node, rank, how = end.groups()
                self.ends.setdefault(
                    rank, Failure(_place(rank, node), self._number, how, node=node, is_end=True)
                )
            return
        gone = _GONE.match(text)
        if gone:
            rank, node, why = gone.groups()
            self._gone.setdefault(
                rank, Failure(_place(rank, node), self._number, why, follows_another(why))
            )
        label = _LABEL.match(text)
        task = self._tasks.setdefault(label[1] if label else "", _Task())
        # A progress bar may end without a line's end.
        text = _LABEL.sub("", text).rpartition("\r")[2]
        task.lines_after += not _DUMP.match(text)
        if text.startswith("Traceback (most recent call last)"):
            task.in_traceback = True
            task.reason_follows = False
        elif task.in_traceback and _ERROR.match(text):
            task.in_traceback = False
            task.error = Failure("", self._number, text, follows_another(text))
            task.reason_follows = text.endswith(":")
            task.lines_after = 0
        elif task.reason_follows and task.error and not _PLACE.match(text):
            line = f"{task.error.line} {text.strip()}"
            follows = task.error.follows or follows_another(line)
            task.error = task.error._replace(line=line, follows=follows)
            task.reason_follows = False

    def error_of(self, rank: str) -> Failure | None:
        """Returns the error that this rank has printed, or any task in a log without labels."""
        task = self._tasks.get(rank) or self._tasks.get("")
        return task.error if task else None

    def first(self) -> Failure | None:
        """Returns the failure of the task that failed first.

        None if no task failed, or if the tasks ended after the training was saved.
        """
        # By rank; '' without a label.
        errors = {rank: task.error for rank, task in self._tasks.items() if task.error}
        reports = {**self._gone}
        if "" not in errors:
            for rank, end in self.ends.items():
                gone = reports.get(rank, end)  # the launcher knows how, but may report later
                reports[rank] = end._replace(
                    task=gone.task, line_number=min(gone.line_number, end.line_number)
                )
        failures = [report for rank, report in reports.items() if rank not in errors]
        # A task that has been cut off reports that the others are gone.
        failures += [
            report for rank, report in self._gone.items() if rank in errors and errors[rank].follows
        ]
        failures += [
            Failure("slurm-resolver check", number, f"{name}: {line.partition('failed   ')[2]}")
            for (id, name), (number, line, _) in self.found.items()
            if id == "check-failed"
        ]
        if self.node:
            failures.append(self.node)
        for rank, error in errors.items():
            if self._tasks[rank].lines_after > _MOST_LINES_AFTER:
                continue
            if not rank and len(self.ends) == 1:
                (rank,) = self.ends
            report = self._gone.get(rank) or self.ends.get(rank)
            failures.append(error._replace(task=report.task if report else _place(rank)))
        first = min(failures, key=lambda one: (one.follows, one.line_number), default=None)
        saved = first and _SAVED.match(first.line)
        return None if saved and (self.continues or not saved[1]) else first


def _place(rank: str, node: str | None = None) -> str:
    return f"rank {rank}" + (f" on {node}" if node else "") if rank else ""


def follows_another(line: str) -> bool:
    """Returns whether another task's failure caused an error, as far as is known."""
    id = search(line)[1]
    return MESSAGES[id].kind == "effect" if id else bool(_CALL_ERRORS.search(line))
