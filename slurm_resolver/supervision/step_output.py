"""What ended a step, by what srun has printed.

srun names each task that fails as soon as it knows. What the versions of Slurm print (measured on
22.05, 24.11 and 26.05), in the order in which it comes:

    a task fails      srun: error: n3: task 3: Exited with exit code 5 (or the name of a signal)
                      srun: Terminating StepId=1.0      (with --kill-on-bad-exit)
                      0: … error: *** STEP 1.0 ON n2 CANCELLED AT … DUE TO TASK FAILURE ***
    a node fails      srun: error: Node failure on n3
    scancel           srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
    the time limit    as scancel, and *** STEP 1.0 ON n2 CANCELLED AT … DUE TO TIME LIMIT ***

22.05 does not say DUE TO TASK FAILURE, so that the line with CANCELLED tells nothing by itself.

In a heterogeneous step srun numbers the tasks of each component from 0 here, while --label and the
tasks themselves have ranks that go on from component to component.
"""

from __future__ import annotations

import collections
import contextlib
import re
import signal
import time
from typing import Deque, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from slurm_resolver.diagnostics.first_failure import TASK_END, TRACEBACK
from slurm_resolver.errors import HostlistError
from slurm_resolver.slurm.hostlist import expand_hostlist
from slurm_resolver.supervision.failure import Failure

_LONGEST_LINE = 1000  # bytes that are kept of each
_KEPT_LINES = 20_000
_KEPT_OF_TASK = 200
_SHOWN_LENGTH = 300
_MOST_RANKS = 100_000  # of a node

_RANKS = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")
_WORKER = re.compile(r"/job:worker/replica:0/task:(\d+)")
_NUMBERED = re.compile(r"(srun: error: ([\w.,\[\]-]+): tasks? )([\d,-]+)(: .*)", re.S)
_ENDED_BY = re.compile(rb"\*\*\* STEP \S+ ON \S+ CANCELLED AT \S+ DUE TO (TIME LIMIT|PREEMPTION) ")
_EXIT_STATUS = re.compile(r"Exited with exit code (\d+)")
_NODE = re.compile(
    r"srun: error: (?:Node failure on |Task launch for \S+ failed on node )([\w.-]+)(?:: (.*))?"
)
_LABEL = re.compile(rb" *(\d{1,7}): ?(.*)", re.S)  # of srun --label
_SIGNALS: Dict[str, signal.Signals] = {
    str(signal.strsignal(number)): number for number in signal.Signals
}


class StepOutput:
    """Reads what srun and its tasks print while it is passed on, and keeps what tells of failures.

    Attributes:
        ending: whether srun, or somebody else, ends the tasks already.
    """

    def __init__(self, first_ranks: Optional[Mapping[str, int]] = None) -> None:
        """Prepares it.

        Args:
            first_ranks: of a heterogeneous step by node the first rank of its component.
        """
        self.ending = False
        self._first_ranks = first_ranks or {}
        self._parts: Dict[str, bytes] = {"stdout": b"", "stderr": b""}
        # the last lines of all tasks; and those of the task that failed first, from then on
        self._lines: Deque[Tuple[str, bytes]] = collections.deque(maxlen=_KEPT_LINES)
        self._own: Deque[Tuple[str, bytes]] = collections.deque(maxlen=_KEPT_OF_TASK)
        self._task: Optional[Failure] = None
        self._node: Optional[Failure] = None
        self._ends: Dict[int, Tuple[Optional[str], str]] = {}  # by rank: its node, and how
        self._cancelled: Optional[float] = None
        self._ended_by: Optional[str] = None  # what Slurm ended the step for
        self._last_error: Optional[str] = None  # of srun
        self._progress: Optional[str] = None

    @property
    def failed(self) -> Optional[Failure]:
        """The task that failed first, as soon as srun has told of it."""
        return self._task

    @property
    def lost_node(self) -> bool:
        """Whether srun has told of a node that failed."""
        return self._node is not None

    def feed(self, stream: str, data: bytes) -> None:
        """Takes the next bytes of the stream "stdout" or "stderr"."""
        *lines, rest = (self._parts[stream] + data).split(b"\n")
        for line in lines:
            self._read(stream, line[-_LONGEST_LINE:])
        self._parts[stream] = rest[-_LONGEST_LINE:]

    def _read(self, stream: str, line: bytes) -> None:
        if stream == "stderr" and line.startswith(b"srun: "):
            line = self._with_own_ranks(line)
            self._lines.append(("srun", line))
            self._read_srun(line.decode(errors="replace").strip())
            return
        self._lines.append((stream, line))
        if self._task is not None and _rank(line) in (self._task.rank, None):
            self._own.append((stream, line))
        ended_by = _ENDED_BY.search(line)
        if ended_by is not None:
            self._ended_by = ended_by[1].decode().lower()
        if b"training goes on from " in line:  # said by BackupAndResume and ResumableLoop
            text = line.decode(errors="replace")
            self._progress = text[text.index("training goes on from ") :].strip()

    def _with_own_ranks(self, line: bytes) -> bytes:
        """Returns srun's line about tasks that ended with the ranks that the tasks have."""
        found = _NUMBERED.match(line.decode(errors="replace")) if self._first_ranks else None
        if found is None:
            return line
        node = found[2]
        with contextlib.suppress(HostlistError):  # a task's own line, which looks like srun's
            node = expand_hostlist(node)[0]
        first = self._first_ranks.get(node, 0)
        ranks = re.sub(r"\d+", lambda number: str(int(number[0]) + first), found[3])
        return (found[1] + ranks + found[4]).encode()

    def _read_srun(self, line: str) -> None:
        now = time.time()
        task, node = TASK_END.match(line), _NODE.match(line)
        if "Job step aborted" in line and self._task is None:
            self._cancelled = self._cancelled or now
        self.ending = self.ending or "Job step aborted" in line or "Terminating StepId" in line
        if line.startswith("srun: error: "):
            self._last_error = line[len("srun: error: ") :]
        if node is not None:
            self._node = self._node or Failure("node", 1, now, node=node[1], line=node[2])
        elif task is not None:
            for rank in _ranks(task[2]):
                self._ends.setdefault(rank, (task[1], task[4]))
        if task is not None and self._task is None:
            status, name = _end(task[4])
            rank = int(task[3])
            self._task = Failure("task", status, now, rank, task[1], name)
            own = (one for one in self._lines if _rank(one[1]) in (rank, None))
            self._own.extend(one for one in own if one[0] != "srun")

    def failure(self, status: int, layout: Sequence[str] = ()) -> Failure:
        """Returns why the step has ended with this status of srun, which is not 0.

        Args:
            status: srun's.
            layout: the node of each rank, as far as is known before srun tells it.
        """
        for stream, rest in self._parts.items():
            if rest:
                self._read(stream, rest)
                self._parts[stream] = b""
        failure = self._first(status)._replace(progress=self._progress)
        if failure.kind != "task":
            return failure
        lines = [(stream, _text(line)) for stream, line in self._own]
        line = _error_line(lines, with_last=failure.signal is None)
        culprit = self._culprit(line)
        if culprit is not None:
            rank, line = culprit
            node, how = self._ends.get(rank, (None, ""))
            ended, name = _end(how)
            # by a signal where it waited for the others after its error: by that it has status 1
            failure = failure._replace(rank=rank, node=node, status=1 if name else ended)
        elif line is not None:
            failure = self._with_blame(failure, line, layout)
        cause = _known_cause([line] if line else [])
        if failure.signal == "SIGKILL" and line is None:
            cause = _known_cause([_text(one) for _, one in self._lines if b"oom" in one])
        return failure._replace(line=line, cause=cause)

    def _culprit(self, line: Optional[str]) -> Optional[Tuple[int, str]]:
        """Returns rank and error of the task whose failure this error is an effect of.

        A task that has raised may wait for the others at its end, who fail meanwhile, and end
        before it.
        """
        from slurm_resolver.diagnostics.first_failure import FailureReader, follows_another

        if line is None or not follows_another(line):
            return None
        reader = FailureReader()
        for number, (_, text) in enumerate(self._lines, 1):
            reader.read(number, text.decode(errors="replace"))
        first = reader.first()
        told = re.match(r"rank (\d+)", first.task) if first else None
        return None if not first or first.follows or not told else (int(told[1]), first.line)

    def _with_blame(self, failure: Failure, line: str, layout: Sequence[str]) -> Failure:
        """Returns the failure with the task that has sent nothing more to TensorFlow's leader.

        Of all tasks only that one says nothing itself.
        """
        from slurm_resolver.diagnostics.first_failure import follows_another
        from slurm_resolver.diagnostics.log_messages import explain

        if not follows_another(line):
            return failure
        findings = explain(_text(text) for _, text in self._lines)
        named = [one.address for one in findings if one.id == "task-unhealthy" and one.address]
        if not named:
            return failure
        worker = _WORKER.fullmatch(named[0])
        if worker is None:
            return failure._replace(blames=named[0])
        rank = int(worker[1])
        fits = all(
            one < len(layout) and layout[one] == node for one, (node, _) in self._ends.items()
        )
        node = self._ends[rank][0] if rank in self._ends else None
        if node is None and fits and rank < len(layout):
            node = layout[rank]
        return failure._replace(blames=named[0], blamed_rank=rank, blamed_node=node)

    def _first(self, status: int) -> Failure:
        # Tasks often fail because of a node of which Slurm learns later: it is the cause then.
        if self._node is not None:
            return self._node
        if self._cancelled is not None or self._task is None:
            kind = "srun" if self._cancelled is None else "cancelled"
            failure = Failure(kind, status, self._cancelled or time.time(), line=self._last_error)
            return failure._replace(cause=self._ended_by) if kind == "cancelled" else failure
        return self._task


def _end(text: str) -> Tuple[int, Optional[str]]:
    """Returns the status and the signal of a task, as srun tells how it ended."""
    exited = _EXIT_STATUS.match(text)
    if exited:
        return int(exited[1]), None
    if text.startswith("Out Of Memory"):
        return 128 + signal.SIGKILL, "SIGKILL (out of memory)"
    number = _SIGNALS.get(text.replace(" (core dumped)", ""))
    return (1, text) if number is None else (128 + number, number.name)


def _ranks(text: str) -> Iterator[int]:
    """Yields the ranks of a list as srun writes it, such as 0-2,5; of a damaged one too."""
    for low, high in _RANKS.findall(text):
        yield from range(int(low), min(int(high or low), int(low) + _MOST_RANKS) + 1)


def _rank(line: bytes) -> Optional[int]:
    match = _LABEL.match(line)
    return int(match[1]) if match else None


def _text(line: bytes) -> str:
    match = _LABEL.match(line)
    # of a progress bar, what stands there last
    return (match[2] if match else line).decode(errors="replace").rstrip().rpartition("\r")[2]


def _error_line(lines: Iterable[Tuple[str, str]], with_last: bool) -> Optional[str]:
    """Returns the line that ends the last traceback; else one that is known; else the last one.

    Args:
        lines: (stream, text) of the task that failed.
        with_last: whether the last line on stderr is taken if no other tells why.
    """
    found, last, in_traceback = None, None, False
    for stream, text in lines:
        if text.startswith(TRACEBACK):
            in_traceback = True
        elif in_traceback and text and not text[0].isspace():
            found, in_traceback = text, False
        elif stream == "stderr" and text.strip() and "CANCELLED AT" not in text:
            last = text.strip()
    line = found or (last if with_last else None)
    if line is None or len(line) <= _SHOWN_LENGTH:
        return line
    return line[:_SHOWN_LENGTH] + " …"


def _known_cause(lines: List[str]) -> Optional[str]:
    # imported here, as its table is only needed once something has failed
    from slurm_resolver.diagnostics.log_messages import explain

    findings = explain(lines)
    return findings[0].cause if findings else None
