"""Why a step has ended: which task failed first, on which node, and how."""

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
        kind: "task"; "node" (it failed, or could not start its tasks); "cancelled" (somebody ended
            the step); "srun" (it could not start the step).
        status: the exit status of the task, or 128 and the number of its signal; else srun's own.
        at: when srun reported it, in seconds since 1970.
        signal: what ended the task, such as "SIGKILL".
        line: the error that the task printed; for other kinds srun's own words.
        cause: for a task what `slurm-resolver explain` knows about the line; for a cancelled step
            "time limit" or "preemption" if Slurm says so.
        progress: the line in which the training said which checkpoint it continues from.
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
        return f"{who} at {when}, {how}{why}{cause}"

    def is_same(self, other: Failure) -> bool:
        """Whether both are the same error, as far as their output shows."""
        return self._compared() == other._compared()

    def _compared(self) -> Tuple[object, ...]:
        # All ranks may have one error, and any may be the first. A signal is for one rank.
        rank = self.rank if self.signal else None
        line = None if self.line is None else _NOT_COMPARED.sub("", self.line)
        return self.kind, self.status, rank, line, self.node if self.kind == "node" else None
