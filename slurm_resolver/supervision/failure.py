"""Why a step has ended: which task failed first, on which node, and by what."""

from __future__ import annotations

import re
import time
from typing import NamedTuple, Optional, Tuple

_NOT_COMPARED = re.compile(  # what differs between two failures of the same cause
    r"0x[0-9a-fA-F]+|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*|\b\d\d:\d\d:\d\d[.\d]*"
    r"|(?<=[\w\]]):\d{4,5}\b|(?i:\bpid[ =]\d+)|StepId=\S+"
)


class Failure(NamedTuple):
    """Why a step has ended.

    Attributes:
        kind: "task"; "node" (it failed, or could not start its tasks); "cancelled" (somebody has
            ended the step); "srun" (it could not start the step).
        status: the exit status of the task, or 128 and the number of its signal; else srun's own.
        at: when srun told of it, in seconds since 1970.
        signal: what ended the task, such as "SIGKILL".
        line: the line of its output that tells why.
        cause: what `slurm-resolver explain` knows of that line; of a step that was cancelled what
            Slurm did it for, if it says so: "time limit" or "preemption".
        progress: the line by which the training said where it went on.
        blames: the task that the others waited for, by TensorFlow's name, where the error tells it:
            it may have been stopped, or hang, and such a task ends by no status of its own.
        blamed_rank, blamed_node: its rank and node, if all tasks are workers.
    """

    kind: str
    status: int
    at: float
    rank: Optional[int] = None
    node: Optional[str] = None
    signal: Optional[str] = None
    line: Optional[str] = None
    cause: Optional[str] = None
    progress: Optional[str] = None
    blames: Optional[str] = None
    blamed_rank: Optional[int] = None
    blamed_node: Optional[str] = None

    @property
    def suspect(self) -> Optional[str]:
        """The node that may be at fault."""
        return self.node if self.blames is None else self.blamed_node

    def describe(self) -> str:
        """Returns who failed first, when and why: rank 3 on n2 at 2026-02-03T04:05:06, SIGKILL."""
        ended = self.signal or f"exit status {self.status}"
        who, how = {
            "node": (f"node {self.node}", "node failure"),
            "cancelled": ("the step", "cancelled"),
            "srun": ("srun", ended),
        }.get(self.kind, (f"rank {self.rank}" + (f" on {self.node}" if self.node else ""), ended))
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(self.at))
        why = f": {self.line.rstrip(' :')}" if self.line and self.kind != "cancelled" else ""
        cause = f" ({self.cause.rstrip('.')})" if self.cause else ""
        return f"{who} at {when}, {how}{why}{cause}{self._describe_blame()}"

    def _describe_blame(self) -> str:
        if self.blames is None:
            return ""
        where = ""
        if self.blamed_rank is not None:
            where = f", rank {self.blamed_rank}"
            where += f" on {self.blamed_node}" if self.blamed_node else ""
            where += " if all tasks are workers"
        return f"; it waited for {self.blames}{where}, which was stopped, hung or cut off"

    def is_same(self, other: Failure) -> bool:
        """Whether both are one error that came twice, as far as their output tells."""
        return self._compared() == other._compared()

    def _compared(self) -> Tuple[object, ...]:
        # whichever rank was the first to have an error that all have; a signal is for one
        rank = self.rank if self.signal else None
        line = None if self.line is None else _NOT_COMPARED.sub("", self.line)
        return self.kind, self.status, rank, line, self.node if self.kind == "node" else None
