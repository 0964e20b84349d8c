"""Finds the task of a run that failed first, in the logs of its tasks.

A task fails with a Python error, whose traceback ends its output, or srun, `slurm-resolver run` or
another task reports how it ended. The other tasks then fail because of it: their calls to it fail,
or srun ends them. srun may report those first: a task that dumps its memory takes long to end. What
Slurm 22.05, 24.11 and 26.05 print, in this order:

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
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from slurm_resolver.diagnostics.message_search import MessageReader, search
from slurm_resolver.errors import HostlistError
from slurm_resolver.slurm.hostlist import expand_hostlist

# TensorFlow's errors of calls to another task.
_CALL_ERRORS = re.compile(r"errors_impl\.(?:Unavailable|Aborted|Cancelled|DeadlineExceeded)Error:")
_MOST_LINES_AFTER = 200  # a task may write after its last error; TensorFlow's own may be long
_LONGEST = 2000  # characters of a line that are read
_LABELLED = re.compile(r"(?: *(\d{1,7}): ?)?(.*)", re.DOTALL)  # the rank of --label, and the line
# The last line of a traceback: the class of the error, which has a dot or a capital letter. srun
# --label may cut the indentation of the lines of code above it, and of those that underline them.
_ERROR = re.compile(r"(?=[\w.<>]*[A-Z.])[A-Za-z_][\w.<>]*(?::? *$|: )")
# Below "Graph execution error:", TensorFlow gives places in the program, and then the reason.
_PLACE = re.compile(
    r"\s*$"
    r"|Detected at node"
    r"|Defined at"
    r"|Node: "
    r"|<stack traces"
    r"|\d+ root error"
    r'|\s*File "'
    r"|\s+(?!\s|\(0\) )"
)
# A graph, of any length.
_DUMP = re.compile(
    r"\s*(?:"
    r"\}"
    r"|[a-z_]+ \{"
    r"|[a-z_]+: \S"
    r"|$"
    r")"
)
# How tasks ended: their nodes; the node, if it is one; the ranks; the words. srun names several
# nodes if their tasks ended alike ("n[8-9]: tasks 0-1"), `slurm-resolver run` none.
_TASK_END = re.compile(
    r"(?:srun: error: (([\w.-]+)|[\w.,\[\]-]+): tasks?|slurm-resolver run: task) "
    r"(\d[\d,-]*)(?::| ended with| was ended by) "
    r"(.+?)(?:; ending|$)"
)
# Neither another task nor srun causes these ends; SIGKILL may come from srun or a user.
# A shell, and exec with parameter servers, end with 128 and the number of their program's signal.
_CRASHED = re.compile(
    "Out Of Memory|Bus error|Segmentation fault|SIGBUS|SIGSEGV|Exited with exit code 13[59]"
)
_KILLED = re.compile(f"Killed|SIGKILL|{_CRASHED.pattern}")
_EXITED = re.compile("(?:Exited with exit code|exit status) (?!75|13[59]|143)")
_MOST_RANKS = 256  # of those that one line names: more are those of several nodes
# A task that this package reports to the others: its rank, its node and the reason.
_GONE = re.compile(r".*\(rank (\d+) on (\S+)\) (?:is gone|is lost|has failed)[^:]*: (.+)")
# A node that failed, and the reason.
_NODE = re.compile(
    r"srun: error: "
    r"(?:Node failure on |Task launch for \S+ failed on node )"
    r"([\w.-]+)(?:: (.*))?"
)
_ENDS_ALL = re.compile(
    r"srun: (?:\S+: \w+: )?Terminating (?:StepId=|job step )(\d+)"
    r"|srun: (?:\S+: \w+: )?Job step aborted"
    r"|.{0,80}\*\*\* (?:STEP|JOB) (\d+)\S* ON \S+ CANCELLED AT "
)
SAVED = re.compile(r"(?:Exited with exit code|exit status) (?:75|(?P<terminated>143))\b")


class Failure(NamedTuple):
    """How a task failed.

    Attributes:
        line_number: the number of `line`, from 1.
        line: the error.
        follows: whether another task's failure caused it, as far as is known.
        is_end: whether `line` only says how the task ended, in the words of another.
        rank: the task's rank; '' if the log does not say, or no task has failed.
        node: the node, where srun or this package names it.
        other: what has failed, if it is no task.
    """

    line_number: int
    line: str
    follows: bool = False
    is_end: bool = False
    rank: str = ""
    node: str | None = None
    other: str = ""

    @property
    def task(self) -> str:
        """The task's rank, with its node if known, or what else has failed; '' if unknown."""
        place = f" on {self.node}" if self.node else ""
        return f"rank {self.rank}{place}" if self.rank else self.other


@dataclass
class _Task:
    """The error at the end of a task's last traceback."""

    in_traceback: bool = False
    error: Failure | None = None
    lines_after: int = 0

    def read(self, text: str, number: int) -> None:
        """Reads the next line, without its label."""
        self.lines_after += not _DUMP.match(text)
        if text.startswith("Traceback (most recent call last)"):
            self.in_traceback = True
        elif self.in_traceback:
            if _ERROR.match(text):
                self.in_traceback = False
                self.error = Failure(number, text, follows=kind_of(text) == "effect")
                self.lines_after = 0
        elif self.error and self.error.line.endswith(":") and not _PLACE.match(text):
            line = f"{self.error.line} {text.strip()}"
            follows = self.error.follows or kind_of(line) == "effect"
            self.error = self.error._replace(line=line, follows=follows)


class FailureReader(MessageReader):
    """Reads the log of one start, line by line, and finds the first failure of its tasks.

    Attributes:
        ends: how tasks ended, as the launcher reports it, by rank. Those that srun may have ended
            follow another one.
        reported: the first of them that the launcher reports.
        ended_on: the nodes on which tasks have ended, as srun reports it.
        node: the first node that failed; without a node, what srun asks for is the cause.
        has_crashed: whether a task has crashed, other than by the end of all.
        all_end: whether srun, or somebody else, ends all tasks.
        slurm_job: the id of the Slurm job, if the log tells it.
    """

    node: Failure | None = None
    reported: Failure | None = None
    has_crashed = False
    all_end = False
    slurm_job: str | None = None

    def __init__(self, file: str = "") -> None:
        super().__init__(file)
        self.ends: dict[str, Failure] = {}
        self.ended_on: set[str] = set()
        self._tasks: dict[str, _Task] = {}  # by rank; '' without a label
        self._gone: dict[str, Failure] = {}  # by rank, as this package reports them

    def read(self, text: str, number: int) -> None:
        """Reads the next line, or the first piece of a long line; `number` is the line's."""
        super().read(text, number)
        text = text.rstrip()
        ends_all = _ENDS_ALL.match(text)
        if ends_all:
            self.all_end = True
            self.slurm_job = self.slurm_job or ends_all[1] or ends_all[2]
        if text.startswith(("srun: ", "slurm-resolver run: ", "slurm-resolver supervise: ")):
            self._read_launcher(text, number)
            return
        text = text[:_LONGEST]
        gone = _GONE.match(text)
        if gone:
            rank, node, why = gone.groups()
            follows = kind_of(why) == "effect"
            self._gone.setdefault(rank, Failure(number, why, follows, True, rank, node))
        rank, text = _LABELLED.findall(text)[0]
        # A progress bar may end without a line's end.
        self._tasks.setdefault(rank, _Task()).read(text.rpartition("\r")[2], number)

    def _read_launcher(self, text: str, number: int) -> None:
        """Reads a line of srun, or of this package's own launchers."""
        failed = _NODE.match(text)
        if failed and not self.node:
            node, why = failed.groups("node failure")
            other = f"node {node}"
            if kind_of(text) == "request":
                node = ""
                other = "srun"
            self.node = Failure(number, why[:_LONGEST], is_end=True, node=node, other=other)
        end = _TASK_END.match(text)
        if end:
            nodes, node, ranks, how = end.groups()
            how = how[:_LONGEST]
            follows = self.all_end
            if _CRASHED.match(how):
                self.has_crashed |= not follows
                if self.reported:  # it may have taken long to dump its memory
                    follows = self.reported.follows
            each = re.findall(r"\d+", ranks)[:1]
            with suppress(HostlistError):  # a task may print anything
                self.ended_on.update(expand_hostlist(nodes or ""))
                each = expand_hostlist(f"[{ranks}]", _MOST_RANKS)
            for rank in each:
                self.ends.setdefault(rank, Failure(number, how, follows, True, rank, node))
            self.reported = self.reported or self.ends[each[0]]

    def first(self) -> Failure | None:
        """Returns the failure of the task that failed first.

        None if no task failed, or if the tasks ended after the training was saved.
        """
        # By rank; '' without a label.
        errors = {
            rank: task.error
            for rank, task in self._tasks.items()
            if task.error and task.lines_after <= _MOST_LINES_AFTER
        }
        ends = {rank: end for rank, end in self.ends.items() if not end.follows}
        if "" in errors:
            # An error without a label is that of a task which no signal has ended.
            raised = [rank for rank, end in ends.items() if not _KILLED.match(end.line)]
            if len(raised) == 1:
                errors.setdefault(raised[0], errors.pop(""))
            for rank in raised:
                del ends[rank]
        failures = [self.node] if self.node else []
        for rank, report in {**ends, **self._gone}.items():
            if rank not in errors:
                end = ends.get(rank, report)  # the launcher knows how, but may report later
                failures.append(
                    end._replace(
                        line_number=min(report.line_number, end.line_number),
                        node=report.node,
                        # A task without an error of its own ends because of one that crashes.
                        follows=end.follows or (self.has_crashed and bool(_EXITED.match(end.line))),
                    )
                )
            elif errors[rank].follows and rank in self._gone:
                # A task that has been cut off reports that the others are gone.
                failures.append(report)
        for (id, name), (number, line) in self.found.items():
            if id == "check-failed":
                what = f"{name}: {line.partition('failed   ')[2]}"
                failures.append(Failure(number, what, other="slurm-resolver check"))
        for rank, error in errors.items():
            reported = self._gone.get(rank) or self.ends.get(rank) or error
            failures.append(error._replace(rank=rank, node=reported.node))
        first = min(failures, key=lambda one: (one.follows, one.line_number), default=None)
        saved = first and SAVED.match(first.line)
        return None if saved and (self.continues or not saved["terminated"]) else first


def kind_of(line: str) -> str:
    """Returns the kind of the known message in a line, as far as that is known; else ''."""
    _, known, _ = search(line)
    if known:
        return known.kind
    return "effect" if _CALL_ERRORS.search(line) else ""
