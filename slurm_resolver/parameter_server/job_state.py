"""Which tasks of a parameter server job have joined and left, and when the job has ended.

The leader is the chief, or worker 0 where there is no chief. A worker trains, or only serves (as
under ParameterServerStrategy). The dispatcher and the data workers of a tf.data service are servers
as the parameter servers are, beside them or in their place.

| event | consequence |
|---|---|
| the chief and all other tasks that train have ended without error | the job ends, status 0 |
| without a chief: all workers have ended without error | the job ends, status 0 |
| the leader has failed | the job ends, status 1 |
| another worker that trains has failed | the others go on; the job ends later, status 1 |
| a worker that only serves is lost | the others go on |
| a server is lost | the job ends, status 1 |
| the leader or a server does not join before the timeout | the job ends, status 1 |
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Protocol, Set

from slurm_resolver.parameter_server.protocol import (
    SERVING_JOBS,
    JobResult,
    MonitorAddress,
    print_line,
)


class State(Protocol):
    """What a monitor knows of the tasks, and by which it tells when the job has ended."""

    def has(self, rank: Any) -> bool:
        """Whether this is the rank of a task that joins."""

    def joined(self, rank: int, serves: bool) -> None:
        """Records that a task has joined; it may have left before."""

    def only_serves(self, rank: int) -> None:
        """Records that a worker only serves, and does not train."""

    def trains(self, rank: int) -> None:
        """Records that a worker does train, whatever it has told before."""

    def left(self, rank: int, failure: str) -> None:
        """Records that a task has left, and why it has failed; '' where it has not."""

    def monitor_left(self, failure: str) -> JobResult:
        """Returns how the job has ended where the monitor's process ends before it."""

    def result(self, waited: float) -> Optional[JobResult]:
        """Returns how the job has ended; None if it goes on `waited` seconds after its start."""


class JobState:
    """The tasks that are present, and how the others have ended."""

    def __init__(self, address: MonitorAddress, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self.servers = {task.rank for task in address.tasks if task.job in SERVING_JOBS} - {
            address.monitor_rank
        }
        self._trainers = {t.rank for t in address.tasks if t.job in ("chief", "worker")}
        # The chief, or by TensorFlow's convention worker 0: the first by job and index.
        self._leader = min(
            self._trainers, key=lambda rank: (address.tasks[rank].job, address.tasks[rank].index)
        )
        self._has_chief = address.tasks[self._leader].job == "chief"
        self._present: Set[int] = set()
        self._training: Set[int] = set()
        self._ended: Dict[int, str] = {}  # by rank of a task that trained: why it failed, or ''
        self._failed_result: Optional[JobResult] = None

    def has(self, rank: Any) -> bool:
        """Whether this is the rank of a task that joins: of all but the one of the monitor."""
        return type(rank) is int and (rank in self.servers or rank in self._trainers)

    def joined(self, rank: int, serves: bool) -> None:
        """Records that a task has joined; it may have left before."""
        self._present.add(rank)
        self._ended.pop(rank, None)
        if rank in self._trainers and not serves:
            self._training.add(rank)

    def only_serves(self, rank: int) -> None:
        """Records that a worker only serves, and does not train."""
        self._training.discard(rank)

    def trains(self, rank: int) -> None:
        """Records that a worker does train, whatever it has told before."""
        if rank in self._trainers & self._present:
            self._training.add(rank)

    def left(self, rank: int, failure: str) -> None:
        """Records that a task has left, and why it has failed; '' where it has not."""
        self._present.discard(rank)
        name = self._address.name(rank)
        if rank in self.servers:
            self._failed_result = self._address.server_lost(rank, failure)
        elif rank not in self._training:
            print_line(f"{name} is lost, the others go on: {failure or 'it has ended'}")
        else:
            self._training.discard(rank)
            self._ended[rank] = failure
            if failure and rank == self._leader:
                self._failed_result = JobResult(1, f"{name} has failed: {failure}")
            elif failure:
                print_line(f"{name} has failed, the others go on: {failure}")

    def monitor_left(self, failure: str) -> JobResult:
        """Returns how the job has ended where the monitor's process ends before it."""
        return self._address.server_lost(self._address.monitor_rank, failure)

    def result(self, waited: float) -> Optional[JobResult]:
        """Returns how the job has ended; None if it goes on `waited` seconds after its start."""
        if self._failed_result is not None:
            return self._failed_result
        time_is_up = waited >= self._timeout
        if time_is_up:
            absent = {*self.servers, self._leader} - self._present - set(self._ended)
            if absent:
                return JobResult(
                    1, f"{self._names(absent)} did not come within {self._timeout:g} s"
                )
        if self._training or self._leader not in self._ended:
            return None
        absent = set() if self._has_chief else self._trainers - set(self._ended)
        # A server that came later would wait for a monitor that has ended.
        if (absent or self.servers - self._present) and not time_is_up:
            return None
        failures = [
            f"{self._address.name(rank)} has failed: {failure}"
            for rank, failure in sorted(self._ended.items())
            if failure
        ]
        if absent:
            failures.append(f"{self._names(absent)} did not come within {self._timeout:g} s")
        if failures:
            return JobResult(1, "; ".join(failures[:5]))
        return JobResult(
            0, f"{'the chief has' if self._has_chief else 'all workers have'} finished"
        )

    def _names(self, ranks: Set[int]) -> str:
        shown = [self._address.name(rank) for rank in sorted(ranks)[:5]]
        return ", ".join(shown) + (f" and {len(ranks) - 5} more" if len(ranks) > 5 else "")
