"""When the tasks end that only serve others: as soon as those that they serve have ended.

Servers are parameter servers, the dispatcher and the data workers of a tf.data service. The leader
is the chief, or worker 0 where there is no chief.

| event | consequence |
|---|---|
| the leader, and all others that train, have said goodbye | the job is over, status 0 |
| the leader is lost, or says goodbye with a failure | the job is over, status 1 |
| another task that trains is lost, or fails | the others go on; the status will be 1 |
| a worker that only serves is lost | the others go on |
| a server is lost, or fails | the job is over, status 1 |
| the leader or a server does not come in time | the job is over, status 1 |
| tasks make different clusters | the job is over, status 1 |
| the process of the coordination service is gone | the job is over, status 1 |

A launcher decides for its task: its program may leave, be lost, and be started again.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from typing import (
    TYPE_CHECKING,
    Callable,
    Dict,
    Iterable,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from slurm_resolver.coordination import wire
from slurm_resolver.coordination.wire import Message, Process
from slurm_resolver.log import print_line

if TYPE_CHECKING:
    from slurm_resolver.coordination.client import Client
    from slurm_resolver.coordination.service import Service

START_SECONDS = 300.0  # for the leader and the servers to come
# By the job of servers: what is lost with one. TensorFlow waits for it without end; without a data
# worker it goes on without its data, or waits for it for ten minutes.
SERVERS = {"ps": "its variables", "dispatcher": "the data service", "data_worker": "data"}
_TRAIN = ("chief", "worker")
_MOST_NAMES = 5
# A leader that fails may do so because a server is lost: so long until that is known.
_REASON_SECONDS = 3.0


class JobResult(NamedTuple):
    """How the job has ended: the exit status of the tasks that serve, and a message."""

    status: int
    message: str


def announcement(tasks: Sequence[Tuple[str, int, str]], rank: int) -> Optional[Message]:
    """Returns what a task says to take part in the job; None where no task waits for it.

    That is in a step without servers or without tasks that train, and in tasks such as the
    evaluator. `tasks` are job, index and address by rank.
    """
    jobs = [job for job, _, _ in tasks]
    trainers = [rank for rank, job in enumerate(jobs) if job in _TRAIN]
    if jobs[rank] not in (*_TRAIN, *SERVERS) or not trainers or not {"ps", "dispatcher"} & {*jobs}:
        return None
    leader = min(trainers, key=lambda rank: tasks[rank][:2])
    digest = hashlib.sha256(json.dumps(tasks).encode()).hexdigest()[:16]
    # All jobs take some 100 bytes, however many tasks there are.
    packed = wire.pack([json.dumps(job) for job in jobs])
    return {"job": packed, "leader": leader, "cluster": digest, "serves": jobs[rank] in SERVERS}


class Job:
    """What the service knows of the job; it is a `Watcher`."""

    def __init__(self, service: Service) -> None:
        """Does nothing until a task takes part."""
        self._service = service
        self._jobs: Sequence[str] = ()  # by rank
        self._leader, self._cluster, self._first, self._size = 0, "", 0, 0
        self._numbers: Dict[int, str] = {}  # of the last process, by rank of a task that came
        self._roles: Dict[int, Set[str]] = {}  # of the processes of the tasks that are present
        self._awaited: Set[int] = set()  # who has to come, and has not
        self._training: Set[int] = set()  # who is present, and does not only serve
        self._ended: Dict[int, str] = {}  # by rank of a task that trained: why it failed, or ''
        self._deadline = self._keep_until = math.inf
        self._timeout = START_SECONDS
        self._failed: Optional[Tuple[float, str]] = None  # the leader: why, and when that counts
        self._result: Optional[Message] = None

    @property
    def keeps_open(self) -> bool:
        """Whether there are tasks that have to be told how the job ends."""
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
            self._size = sum(job in _TRAIN or job in SERVERS for job in self._jobs)
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
        self._service.answer(process, self._result or {"over": None})

    def left(self, process: Process, failure: str) -> str:
        """Takes a goodbye; only a launcher knows that a server has ended well before the others."""
        is_server = bool(self._jobs) and self._jobs[process.rank] in SERVERS
        if is_server and process.role == "program" and not failure:
            failure = "its process ended before those that it serves"
        return self._leave(process, failure, _REASON_SECONDS)

    def lost(self, process: Process, reason: str) -> str:
        """Takes a loss."""
        return self._leave(process, reason, 0.0)

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

    def _leave(self, process: Process, failure: str, seconds: float) -> str:
        rank, roles = process.rank, self._roles.get(process.rank, set())
        if process.role == "program" and "launcher" in roles:
            roles.discard("program")
        elif process.role in roles:
            del self._roles[rank]
            if self._result is None:
                self._note_end(rank, failure, seconds)
                self._look()
        return ""

    def _is_of_next_job(self, process: Process) -> bool:
        """Whether the task runs its next program already, whose service is still to come."""
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
            # Who is stopped, or away in a gap of the network, is not waited for without end.
            self._keep_until = time.monotonic() + self._service.address.grace
            self._service.send(self._roles, self._result)

    def _names(self, ranks: Iterable[int]) -> str:
        names = [self._service.name_of(rank) for rank in sorted(ranks)]
        more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
        return " and ".join([*names[:_MOST_NAMES], *more])


class Member:
    """The part of this process in the job: it announces the task, and learns how the job ends.

    Attributes:
        client: the connection to the service.
        result: how the job has ended; None before.
    """

    def __init__(
        self, client: Client, announced: Message, on_over: Callable[[JobResult], None]
    ) -> None:
        """Announces the task; `on_over` is called in a thread when the job is over."""
        self.client = client
        self.result: Optional[JobResult] = None
        self._announced, self._on_over = announced, on_over
        self._joined, self._over = threading.Event(), threading.Event()
        client.listen("over", self._hear)
        client.listen("gone", self._hear_of_loss)
        client.say(**announced)

    def serve(self, timeout: float) -> None:
        """Says that this task only serves, and that the others must come within `timeout`."""
        self.client.say(**{**self._announced, "serves": True, "seconds": timeout})

    def await_joined(self, timeout: float) -> bool:
        """Returns whether the service knows of this task, after at most so many seconds."""
        until = time.monotonic() + timeout
        while not self._joined.wait(min(0.1, max(0.0, until - time.monotonic()))):
            if time.monotonic() >= until or self.client.refusal:
                return False
        return True

    def await_over(self) -> JobResult:
        """Waits until the job is over, and returns how it has ended."""
        self._over.wait()
        assert self.result is not None
        return self.result

    def end(self, status: int, message: str) -> None:
        """Notes that the job is over."""
        if self.result is None:
            self.result = JobResult(status, message)
            self._over.set()
            threading.Thread(target=self._on_over, args=(self.result,), daemon=True).start()

    def _hear(self, message: Message) -> None:
        self._joined.set()
        if message["over"] is not None:
            self.end(message["over"], message["message"])

    def _hear_of_loss(self, message: Message) -> None:
        if message["gone"] is None:
            self.end(1, f"{self.client.name_of(message['rank'])} is lost: {message['why']}")
