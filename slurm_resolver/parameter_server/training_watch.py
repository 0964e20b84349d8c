"""Whether those who train have all ended, for servers that cannot know.

The rules are those of a bystander: whatever else happens, the tasks go on as if nobody watched.

| event | consequence |
|---|---|
| every chief and worker has come and ended, well or not, and every server has come | told to all |
| the same, but workers beside a chief only wait in join(): see `join_watch` | told to all |
| a task comes again | it has not ended |
| a server ends | none |
| the monitor's process ends | nobody watches any more |
"""

from __future__ import annotations

from typing import Any, Optional, Set

from slurm_resolver.parameter_server.protocol import SERVING_JOBS, JobResult, MonitorAddress

ALL_ENDED = JobResult(0, "all that train have ended")
# What the other servers hear where the monitor's process has ended by itself.
UNWATCHED = -1


class TrainingWatch:
    """Those who train, and whether they have ended."""

    def __init__(self, address: MonitorAddress, timeout: float) -> None:
        self._servers = {t.rank for t in address.tasks if t.job in SERVING_JOBS}
        self._servers.discard(address.monitor_rank)
        self._trainers = {t.rank for t in address.tasks if t.job in ("chief", "worker")}
        self._chiefs = {t.rank for t in address.tasks if t.job == "chief"}
        self._came: Set[int] = set()
        self._ended: Set[int] = set()  # of those who train
        self._serving: Set[int] = set()  # of these, who only wait in join() so far

    def has(self, rank: Any) -> bool:
        """Whether this is the rank of a task that joins."""
        return type(rank) is int and (rank in self._servers or rank in self._trainers)

    def joined(self, rank: int, serves: bool) -> None:
        """Records that a task has joined; it may have left before."""
        self._ended.discard(rank)
        self._came.add(rank)
        self._serving.discard(rank)
        if serves:
            self.only_serves(rank)

    def only_serves(self, rank: int) -> None:
        """Records that a worker only waits in join()."""
        if rank in self._trainers:
            self._serving.add(rank)

    def trains(self, rank: int) -> None:
        """Records that a worker does more than that."""
        self._serving.discard(rank)

    def left(self, rank: int, failure: str) -> None:
        """Records that a task has left."""
        if rank in self._trainers:
            self._ended.add(rank)
            self._serving.discard(rank)

    def monitor_left(self, failure: str) -> JobResult:
        """Returns what the others are told where the monitor's process ends first."""
        return JobResult(UNWATCHED, "nobody watches any more")

    def result(self, waited: float) -> Optional[JobResult]:
        """Returns that those who train have ended; None before."""
        left = self._trainers - self._ended
        if not self._servers <= self._came:
            return None
        if not left:
            return ALL_ENDED
        # Without a chief a client from elsewhere may be whom they serve.
        if not self._chiefs or not self._chiefs <= self._ended or not left <= self._serving:
            return None
        workers = "1 worker only waits" if len(left) == 1 else f"{len(left)} workers only wait"
        return JobResult(
            0,
            f"the chief has ended, and {workers} in join(): exec ends what serves "
            "(with --no-end-servers it ends nothing)",
        )
