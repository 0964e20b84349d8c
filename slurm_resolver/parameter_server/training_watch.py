"""Whether those who train have all ended, for servers that cannot know.

The rules are those of a bystander: whatever else happens, the tasks go on as if nobody watched.

| event | consequence |
|---|---|
| every chief and worker has come and ended, well or not, and every server has come | told to all |
| a task comes again | it has not ended |
| a server ends | none |
| the monitor's process ends | nobody watches any more |
"""

from __future__ import annotations

from typing import Any, Optional, Set

from slurm_resolver.parameter_server.protocol import SERVING_JOBS, JobResult, MonitorAddress

# What the other servers hear where the monitor's process has ended by itself.
UNWATCHED = -1


class TrainingWatch:
    """Those who train, and whether they have ended."""

    def __init__(self, address: MonitorAddress, timeout: float) -> None:
        self._servers = {t.rank for t in address.tasks if t.job in SERVING_JOBS}
        self._servers.discard(address.monitor_rank)
        self._trainers = {t.rank for t in address.tasks if t.job in ("chief", "worker")}
        self._came: Set[int] = set()
        self._ended: Set[int] = set()  # of those who train

    def has(self, rank: Any) -> bool:
        """Whether this is the rank of a task that joins."""
        return type(rank) is int and (rank in self._servers or rank in self._trainers)

    def joined(self, rank: int, serves: bool) -> None:
        """Records that a task has joined; it may have left before."""
        self._ended.discard(rank)
        self._came.add(rank)

    def only_serves(self, rank: int) -> None:
        """Records nothing: also a worker that serves is one that others wait for."""

    def left(self, rank: int, failure: str) -> None:
        """Records that a task has left."""
        if rank in self._trainers:
            self._ended.add(rank)

    def monitor_left(self, failure: str) -> JobResult:
        """Returns what the others are told where the monitor's process ends first."""
        return JobResult(UNWATCHED, "nobody watches any more")

    def result(self, waited: float) -> Optional[JobResult]:
        """Returns that those who train have ended; None before."""
        if self._ended < self._trainers or not self._servers <= self._came:
            return None
        return JobResult(0, "all that train have ended")
