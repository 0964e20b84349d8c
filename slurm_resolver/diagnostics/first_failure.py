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
from collections import defaultdict
from contextlib import suppress
from operator import attrgetter

from slurm_resolver.coordination.usage import LINE
from slurm_resolver.diagnostics.known_messages import FAULTS
from slurm_resolver.diagnostics.message_search import MessageReader, printable
from slurm_resolver.diagnostics.task_output import Failure, TaskOutput, kind_of
from slurm_resolver.errors import HostlistError
from slurm_resolver.slurm.hostlist import expand_hostlist

_LONGEST = 10_000  # characters of a line that are read
_TIME = r"(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S* )?"
# The rank of --label, and the line.
_LABELLED = re.compile(rf"{_TIME}(?: *(\d{{1,7}}): ?)?{_TIME}(.*)", re.DOTALL)
_LAUNCHER = re.compile("srun: (?!fatal: )|slurm-resolver (?:run|supervise): ")
# What a task has not ended, such as a progress bar, before a launcher reports an end.
UNENDED = re.compile(
    r"(?! *\d{1,7}: |slurm-resolver supervise: ).+?"
    r"(?=srun: error: (?:\S+: tasks? \d|Node failure)"
    r"|srun: Job step aborted"
    r"|slurmstepd\S*: error: \*\*\*"
    r"|slurm-resolver run: task \d)",
    re.DOTALL,
)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
# How tasks ended: their nodes; the node, if it is one; the ranks; the words. srun names several
# nodes if their tasks ended alike ("n[8-9]: tasks 0-1"), `slurm-resolver run` none.
_TASK_END = re.compile(
    r"(?:srun: error: (([\w.-]+)|[\w.,\[\]-]+): tasks?|slurm-resolver run: task) "
    r"(\d[\d,-]*)(?::| ended with| was ended by) "
    r"(.+?)(?:; ending|$)"
)
# No fault of the program sends these signals: what it wrote before is not the reason.
_ENDED = re.compile("Killed|Terminated|Out Of Memory|SIG(?:KILL|TERM)")
# Neither another task nor srun causes these ends; SIGKILL may come from srun or a user.
# A shell ends with 128 and the number of its program's signal.
_CRASHED = re.compile(
    "Out Of Memory|Bus error|Segmentation fault|SIGBUS|SIGSEGV|Exited with exit code 13[59]"
)
_KILLED = re.compile(f"Killed|SIGKILL|{_CRASHED.pattern}")
_EXITED = re.compile("(?:Exited with exit code|exit status) (?!75|13[59]|143)")
# A task that this package reports to the others: its rank, its node and the reason.
_GONE = re.compile(r".*\(rank (\d+) on (\S+)\) (?:is gone|is lost|has failed)[^:]*: (.+)")
# A node that failed, and the reason.
_NODE = re.compile(
    r"srun: error: "
    r"(?:Node failure on |Task launch for \S+ failed on node )"
    r"([\w.-]+)(?:: (.*))?"
)
_ENDS_ALL = re.compile(
    r"srun: (?:\S+: \w+: )?Terminating (?:StepId=|job step )"
    r"|srun: (?:\S+: \w+: )?Job step aborted"
    r"|.{0,80}\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT "
)
SAVED = re.compile(r"(?:Exited with exit code|exit status) (?:75|(?P<terminated>143))\b")

Failures = dict[str, Failure]  # of tasks, by rank


class FailureReader(MessageReader):
    """Reads the log of one start, line by line, and finds the first failure of its tasks.

    Attributes:
        ends: how tasks ended, as the launcher reports it, by rank. Those that srun may have ended
            follow another one.
        reported: the first of them that the launcher reports.
        ended_on: the nodes on which tasks have ended, as srun reports it.
        node: the first node that failed; without a node, what srun asks for is the cause.
        usage: the lines with which trainings say where their time went.
        is_labelled: whether ranks stand before lines, as srun --label writes them.
        all_end: whether srun, or somebody else, ends all tasks.
    """

    node: Failure | None = None
    reported: Failure | None = None
    is_labelled = False
    all_end = False
    _refusal: Failure | None = None  # the last line, if it is an error of srun

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.ends: Failures = {}
        self.ended_on: set[str] = set()
        self.usage: list[str] = []
        self._tasks = defaultdict[str, TaskOutput](TaskOutput)  # by rank; '' without a label
        self._gone: Failures = {}  # by rank, as this package reports them

    def read(self, text: str, number: int) -> None:
        """Reads the next line, or the first piece of a long line; `number` is the line's."""
        unended = UNENDED.match(text)
        if unended:
            self.read(unended[0], number)
            text = text[unended.end() :]
        text = _COLOUR.sub("", text)
        super().read(text, number)
        text = text.rstrip()
        start = text[:_LONGEST]
        self.all_end |= bool(_ENDS_ALL.match(start))
        self._refusal = Failure(number, start) if start.startswith("srun: error: ") else None
        if _LAUNCHER.match(start):
            self._read_node(start, number)
            self._read_ends(start, number)
            return
        rank, text = _LABELLED.findall(text)[0]
        self.is_labelled |= rank != ""
        # A progress bar may end without a line's end, however often it was drawn.
        text = text.rpartition("\r")[2][:_LONGEST]
        self.usage.extend(map(printable, LINE.findall(text)))
        for gone, node, why in _GONE.findall(text):
            follows = kind_of(why) == "effect"
            self._gone.setdefault(gone, Failure(number, why, follows, True, gone, node))
        self._tasks[rank].read(text, number)

    def _read_node(self, text: str, number: int) -> None:
        """Reads which node failed, from a line of a launcher."""
        failed = _NODE.match(text)
        if failed and not self.node:
            node, why = failed.groups("node failure")
            self.node = Failure(number, why, is_end=True, node=node, other=f"node {node}")
            if kind_of(text) == "request":
                self.node = self.node._replace(node="", other="srun")

    def _read_ends(self, text: str, number: int) -> None:
        """Reads how tasks ended, from a line of a launcher."""
        end = _TASK_END.match(text)
        if not end:
            return
        nodes, node, ranks, how = end.groups("")
        follows = self.all_end
        if self.reported and _CRASHED.match(how):  # it may have taken long to dump its memory
            follows = self.reported.follows
        with suppress(HostlistError):  # a task may print anything
            for rank in expand_hostlist(f"[{ranks}]"):
                end_of_rank = Failure(number, how, follows, True, rank, node)
                self.reported = self.reported or end_of_rank
                self.ends.setdefault(rank, end_of_rank)
            self.ended_on.update(expand_hostlist(nodes))

    @property
    def rank_0_runs(self) -> bool:
        """Whether rank 0 runs on after srun has reported the end of others."""
        return bool(self.ended_on) and not self.all_end and "0" not in self.ends

    @property
    def has_failed(self) -> bool:
        """Whether a task has failed, or a message reports a fault after which no task trained."""
        trained = max((task.trained for task in self._tasks.values()), default=0)
        kinds = {finding.known.kind for finding in self.findings()}
        has_fault = self.last_fault >= trained and not kinds.isdisjoint(FAULTS)
        return "end" in kinds or has_fault or self.first() is not None

    def first(self) -> Failure | None:
        """Returns the failure of the task that failed first.

        None if no task failed, or if the tasks ended after the training was saved.
        """
        ends = {rank: end for rank, end in self.ends.items() if not end.follows}
        # Without a label, it is the error of any of the tasks.
        errors = {
            rank: error
            for rank, task in self._tasks.items()
            if (error := task.error(rank in self.ends or (not rank and bool(self.ends))))
        }
        if "" in errors:
            # It is an error of a task which no signal has ended.
            raised = [rank for rank, end in ends.items() if not _KILLED.match(end.line)]
            if len(raised) == 1:
                errors.setdefault(raised[0], errors.pop(""))
            for rank in raised:
                del ends[rank]
        # A task without an error of its own ends because of one that crashes.
        has_crashed = any(_CRASHED.match(end.line) for end in ends.values())
        failures = [
            end._replace(follows=end.follows or (has_crashed and bool(_EXITED.match(end.line))))
            for end in [*ends.values(), *self._gone.values()]
            # A task that has been cut off reports that the others are gone.
            if end.rank not in errors
            or (errors[end.rank].follows and end is self._gone.get(end.rank))
        ]
        failures += [
            Failure(
                finding.line_number,
                f"{address}: {finding.line.partition('failed   ')[2]}",
                other="slurm-resolver check",
            )
            for (id, address), finding in self.found.items()
            if id == "check-failed"
        ]
        reports = {**self.ends, **self._gone}
        failures += [
            error._replace(rank=rank, node=reports.get(rank, error).node)
            for rank, error in errors.items()
        ]
        failures += [self.node] if self.node else []
        first = min(failures, key=attrgetter("follows", "line_number"), default=None)
        if not first:
            has_ended = self.ends or self.all_end
            return None if has_ended else self._tasks[""].clue(has_failed=False) or self._refusal
        if first.is_end:  # the launcher knows how
            first = first._replace(line=ends.get(first.rank, first).line)
        saved = SAVED.match(first.line)
        if saved and (self.continues or not saved["terminated"]):
            return None
        return self._with_clue(first)

    def _with_clue(self, end: Failure) -> Failure:
        """Returns what the task wrote before it ended so; else the end."""
        if not end.is_end or not end.rank or _ENDED.match(end.line):
            return end
        label = end.rank if end.rank in self._tasks else ""
        clue = self._tasks[label].clue(has_failed=True)
        if clue and (label or len(self.ends) == 1):
            return clue._replace(rank=end.rank, node=end.node, follows=end.follows)
        return clue or end
