"""Who has joined and left a parameter server job, and what that means: the rules, and no more.

| what happens | what follows |
|---|---|
| the chief has ended well, and so has who trains beside it | the job has ended, status 0 |
| without a chief: all workers have ended well | the same |
| the chief, or without one worker 0, has failed | the job has ended, status 1 |
| another worker that trains has failed | the others go on; in the end the status is 1 |
| a worker that serves is lost | the others go on |
| a parameter server is lost | the job has ended, status 1 |
| the chief (worker 0) or a parameter server never comes | the same, after the timeout |
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Set

from slurm_resolver.parameter_server.protocol import JobResult, MonitorAddress, print_line


class JobState:
    """Who is there, and how those who have left ended: what that means for the job."""

    def __init__(self, address: MonitorAddress, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self.servers = {task.rank for task in address.tasks if task.job == "ps"} - {
            address.monitor_rank
        }
        self._trainers = {t.rank for t in address.tasks if t.job in ("chief", "worker")}
        # The chief, and where there is none, by TensorFlow's convention, worker 0.
        leading = min(self._trainers, key=lambda rank: address.tasks[rank][3:5])
        self._leader = leading
        self._has_chief = address.tasks[leading].job == "chief"
        self._present: Set[int] = set()
        self._training: Set[int] = set()
        self._ended: Dict[int, str] = {}  # who trained: '' or why it failed
        self._lost: Optional[JobResult] = None

    def may_join(self, rank: Any) -> bool:
        """Whether it is a rank of a task that is not here yet."""
        known = isinstance(rank, int) and (rank in self.servers or rank in self._trainers)
        return known and rank not in self._present

    def joined(self, rank: int, serves: bool) -> None:
        """A task has joined, maybe not for the first time."""
        self._present.add(rank)
        self._ended.pop(rank, None)
        if rank in self._trainers and not serves:
            self._training.add(rank)

    def only_serves(self, rank: int) -> None:
        """A worker only serves, as it turns out, and does not train by itself."""
        self._training.discard(rank)

    def left(self, rank: int, failure: str) -> None:
        """A task has left: `failure` is '' where it has ended well."""
        self._present.discard(rank)
        name = self._address.name(rank)
        if rank in self.servers:
            why = failure or "it has ended before those that it serves"
            self._lost = JobResult(1, f"{name} is lost, and its variables with it: {why}")
        elif rank not in self._training:
            print_line(f"{name} is lost, the others go on: {failure or 'it has ended'}")
        else:
            self._training.discard(rank)
            self._ended[rank] = failure
            if failure and rank == self._leader:
                self._lost = JobResult(1, f"{name} has failed: {failure}")
            elif failure:
                print_line(f"{name} has failed, the others go on: {failure}")

    def result(self, waited: float) -> Optional[JobResult]:
        """Returns how the job has ended, after `waited` seconds; None where it goes on."""
        if self._lost is not None:
            return self._lost
        late = waited >= self._timeout
        if late:
            absent = {*self.servers, self._leader} - self._present - set(self._ended)
            if absent:
                return JobResult(
                    1, f"{self._names(absent)} did not come within {self._timeout:g} s"
                )
        if self._training or self._leader not in self._ended:
            return None
        absent = set() if self._has_chief else self._trainers - set(self._ended)
        if absent and not late:
            return None
        failed = [
            f"{self._address.name(rank)} has failed: {failure}"
            for rank, failure in sorted(self._ended.items())
            if failure
        ]
        if absent:
            failed.append(f"{self._names(absent)} did not come within {self._timeout:g} s")
        if failed:
            return JobResult(1, "; ".join(failed[:5]))
        return JobResult(
            0, f"{'the chief has' if self._has_chief else 'all workers have'} finished"
        )

    def _names(self, ranks: Set[int]) -> str:
        shown = [self._address.name(rank) for rank in sorted(ranks)[:5]]
        return ", ".join(shown) + (f" and {len(ranks) - 5} more" if len(ranks) > 5 else "")
