"""When the tasks end that only serve others: as soon as those that they serve have ended.

Servers are parameter servers, the dispatcher and the data workers of a tf.data service. The leader
is the chief, or worker 0 where there is no chief.

| event | consequence |
|---|---|
| the leader, and all others that train, have said goodbye | the job is over, status 0 |
| the leader is lost, or says goodbye with a failure | the job is over, status 1 |
| the leader has left, and workers beside a ps still run after 30 s | one line names them |
| another task that trains is lost, or fails | the others go on; the status will be 1 |
| a worker that only serves is lost | the others go on |
| a server is lost, or fails | the job is over, status 1 |
| the leader or a server does not come in time | the job is over, status 1 |
| tasks make different clusters | the job is over, status 1 |
| the process of the coordination service is gone | the job is over, status 1 |

A launcher decides for its task: its program may leave, be lost, and be started again.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Dict, Iterable, Optional, Sequence, Set, Tuple

from slurm_resolver.coordination import wire
from slurm_resolver.coordination.wire import Message, Process
from slurm_resolver.log import print_line

if TYPE_CHECKING:
    from slurm_resolver.coordination.service import Service

# What is lost with a server, by its job. TensorFlow waits for a lost server without end; without a
# data worker it continues without its data, or waits for ten minutes.
SERVERS = {"ps": "its variables", "dispatcher": "the data service", "data_worker": "data"}
TRAIN = ("chief", "worker")
_MOST_NAMES = 5
# The loss of a server may become known this long after the failure that it causes in the leader.
_REASON_SECONDS = 3.0
_WAIT_NOTICE_SECONDS = 30.0  # after the leader's end, until workers that still run are named


class Job:
    """What the service knows of the job; it is a `Watcher`."""

    def __init__(self, service: Service) -> None:
        """Does nothing until a task takes part."""
        self._service = service
        service.is_needed = self._has_to_tell
        self._jobs: Sequence[str] = ()  # by rank
        self._leader, self._cluster, self._first, self._size = 0, "", 0, 0
        self._numbers: Dict[int, str] = {}  # of the last process, by rank of a task that came
        self._roles: Dict[int, Set[str]] = {}  # of the processes of the tasks that are present
        self._awaited: Set[int] = set()  # the ranks that have not come yet
        self._training: Set[int] = set()  # the ranks that are present and do not only serve
        self._ended: Dict[int, str] = {}  # by rank of a task that trained: why it failed, or ''
        self._deadline = self._keep_until = math.inf
        self._timeout = 0.0
        self._failed: Optional[Tuple[float, str]] = None  # the leader: why, and when that counts
        self._leader_ended = math.inf
        self._result: Optional[Message] = None

    def _has_to_tell(self) -> bool:
        """Returns whether there are tasks that have to be told how the job ends."""
        if self._result is None:
            waits = self._failed is not None or (self._awaited and self._deadline < math.inf)
        else:  # those that come late to a job that has failed are told
            waits = self._result["over"] and len(self._numbers) < self._size
        return bool(self._roles or waits) and time.monotonic() < self._keep_until

    def message(self, process: Process, message: Message) -> None:
        """Takes the announcement of a task."""
        rank = process.rank
        if "job" not in message or self._is_of_next_job(process):
            return
        if not self._jobs:
            self._jobs, self._first = wire.unpack(message["job"]), rank
            self._leader, self._cluster = message["leader"], message["cluster"]
            self._size = sum(job in TRAIN or job in SERVERS for job in self._jobs)
            needed = set(SERVERS) if self._jobs[self._leader] == "chief" else {"worker", *SERVERS}
            self._awaited = {r for r, job in enumerate(self._jobs) if job in needed}
            self._awaited.add(self._leader)
        seconds = message.get("seconds", math.inf)
        if time.monotonic() + seconds < self._deadline:
            self._deadline, self._timeout = time.monotonic() + seconds, seconds
        self._awaited.discard(rank)
        if message["serves"]:
            self._training.discard(rank)
        elif rank not in self._roles:
            self._ended.pop(rank, None)
            self._training.add(rank)
        self._numbers[rank] = process.number
        self._roles.setdefault(rank, set()).add(process.role)
        if message["cluster"] != self._cluster:
            names = self._names([self._first, rank])
            self._end(1, f"{names} make different clusters: all tasks need the same arguments")
        self._look()
        self._service.send([rank], self._result or {"over": None})

    def ended(self, process: Process, failure: str, said_goodbye: bool) -> str:
        """Takes the end of a process."""
        rank, roles = process.rank, self._roles.get(process.rank, set())
        if process.role == "program" and "launcher" in roles:
            roles.discard("program")
        elif process.role in roles:
            # Only a launcher knows that a server has ended well before the others.
            if process.role == "program" and self._jobs[rank] in SERVERS:
                failure = failure or "its process ended before those that it serves"
            del self._roles[rank]
            if self._result is None:
                self._note_end(rank, failure, _REASON_SECONDS if said_goodbye else 0.0)
                self._look()
        return ""

    def tick(self, now: float) -> None:
        """Notices who has not come in time, and that the leader has failed."""
        if self._failed is not None and now >= self._failed[0]:
            self._end(1, self._failed[1])
        if self._result is None and self._awaited and now >= self._deadline:
            why = f"did not come within {self._timeout:g} s"
            needed = [r for r in self._awaited if r == self._leader or self._jobs[r] in SERVERS]
            if needed:
                self._end(1, f"{self._names(needed)} {why}")
            self._ended.update(dict.fromkeys(self._awaited, f"it {why}"))
            self._awaited.clear()
            self._look()
        if self._training and "ps" in self._jobs and now >= self._leader_ended:
            self._leader_ended = math.inf
            print_line(
                f"{self._names([self._leader])} has ended; {self._names(self._training)} still "
                "runs. A TensorFlow 1 session also waits for ended workers, unless it has "
                'ConfigProto(device_filters=["/job:ps", "/job:worker/task:INDEX"]).'
            )

    def _is_of_next_job(self, process: Process) -> bool:
        """Returns whether the task already runs its next program, whose service has not started."""
        if not self._jobs:
            return self._service.leaves
        is_next = self._numbers.get(process.rank, process.number) != process.number
        return self._result is not None and process.rank not in self._roles and is_next

    def _note_end(self, rank: int, failure: str, seconds: float) -> None:
        job, name = self._jobs[rank], self._names([rank])
        if job in SERVERS:
            if failure:
                self._end(1, f"{name} is lost, and {SERVERS[job]} with it: {failure}")
        elif rank not in self._training:
            print_line(f"{name} is lost, the others go on: {failure or 'its process ended'}")
        else:
            self._training.discard(rank)
            self._ended[rank] = failure
            if failure and rank == self._leader:
                self._failed = (time.monotonic() + seconds, f"{name} has failed: {failure}")
            elif failure:
                print_line(f"{name} has failed, the others go on: {failure}")
            elif rank == self._leader:
                self._leader_ended = time.monotonic() + _WAIT_NOTICE_SECONDS

    def _look(self) -> None:
        """Notices that all who train have ended; a server that comes later could not be told."""
        if self._training or self._awaited or self._failed or self._leader not in self._ended:
            return
        failed = {rank: why for rank, why in sorted(self._ended.items()) if why}
        told = [f"{self._names([rank])} has failed: {why}" for rank, why in failed.items()]
        self._end(int(bool(failed)), "; ".join(told[:_MOST_NAMES]) or "all who train have finished")

    def _end(self, status: int, message: str) -> None:
        if self._result is None:
            self._result = {"over": status, "message": message}
            # The service does not wait for ever for a stopped or disconnected task.
            self._keep_until = time.monotonic() + self._service.address.grace
            self._service.send(self._roles, self._result)

    def _names(self, ranks: Iterable[int]) -> str:
        names = [self._service.name_of(rank) for rank in sorted(ranks)]
        more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
        return " and ".join([*names[:_MOST_NAMES], *more])
