"""When tasks that only serve others end: as soon as the tasks that they serve have ended.

Servers are parameter servers. The leader is the chief, or worker 0 without a chief.

| event | consequence |
|---|---|
| the leader, and all others that train, have said goodbye | the job is over, status 0 |
| the leader is lost, or says goodbye with a failure | the job is over, status 1 |
| the leader has left, and workers beside a ps still run after 30 s | one line names them |
| another task that trains is lost, or fails | the others continue; the status will be 1 |
| a worker that only serves is lost | the others continue |
| a server, or the process of the coordination service, is lost | the job is over, status 1 |
| the leader or a server does not come in time | the job is over, status 1 |
| tasks make different clusters | the job is over, status 1 |

A launcher decides for its task: its program may leave, be lost, and be started again. `Job` is the
service's part, and `Member` the part of a task's process.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from typing import Callable, Dict, NamedTuple, Optional, Sequence, Set, Tuple

from slurm_resolver.coordination import NameOf, wire
from slurm_resolver.coordination.wire import Message, Process, Send
from slurm_resolver.log import print_line
from slurm_resolver.wording import shorten

TRAIN = ("chief", "worker")
START_SECONDS = 300.0  # for the leader and the servers to come
_MOST_NAMES = 5
# The loss of a server may become known this long after the failure that it causes in the leader.
_REASON_SECONDS = 3.0
_WAIT_NOTICE_SECONDS = 30.0  # from the leader's end until workers that still run are named


class JobResult(NamedTuple):
    """How the job has ended: the exit status of the tasks that serve, and a message."""

    status: int
    message: str


def announcement(tasks: Sequence[Tuple[str, int, str]], rank: int) -> Optional[Message]:
    """Returns the message by which a task takes part in the job, which an evaluator does not.

    It is None for such a task, and in a step without servers or without tasks that train. `tasks`
    are job, index and address by rank.
    """
    jobs = [job for job, _, _ in tasks]
    trainers = [rank for rank, job in enumerate(jobs) if job in TRAIN]
    if jobs[rank] not in (*TRAIN, "ps") or not trainers or "ps" not in jobs:
        return None
    leader = min(trainers, key=lambda rank: tasks[rank][:2])
    digest = hashlib.sha256(json.dumps(tasks).encode()).hexdigest()[:16]
    # All jobs take some 100 bytes, however many tasks there are.
    packed = wire.pack([json.dumps(job) for job in jobs])
    return {"job": packed, "leader": leader, "cluster": digest, "serves": jobs[rank] == "ps"}


class Job:
    """What the service knows of the job; it runs in the service's thread."""

    def __init__(
        self, grace: float, send: Send, name_of: NameOf, leaves: Callable[[], bool]
    ) -> None:
        """`leaves` returns whether the process of the service is about to end."""
        self._grace, self._send, self._name_of, self._leaves = grace, send, name_of, leaves
        self._jobs: Sequence[str] = ()  # by rank
        self._leader, self._cluster, self._first, self._size = 0, "", 0, 0
        self._numbers: Dict[int, str] = {}  # of the last process, by rank of a task that came
        self._roles: Dict[int, Set[str]] = {}  # of the processes of the present tasks, by rank
        self._awaited: Set[int] = set()  # the ranks that have not come yet
        self._training: Set[int] = set()  # the present ranks that do not only serve
        self._ended: Dict[int, str] = {}  # by rank of a task that trained: why it failed, or ''
        self._deadline, self._timeout, self._keep_until = math.inf, 0.0, math.inf
        self._failed: Optional[Tuple[float, str]] = None  # the leader: when that counts, and why
        self._leader_ended = math.inf
        self._result: Optional[JobResult] = None

    def has_to_tell(self) -> bool:
        """Returns whether some tasks have to be told how the job ends."""
        if self._result is None:
            waits = bool(self._failed or (self._awaited and self._deadline < math.inf))
        else:  # tasks that come late to a failed job are told
            waits = self._result.status != 0 and len(self._numbers) < self._size
        return (bool(self._roles) or waits) and time.monotonic() < self._keep_until

    def message(self, process: Process, message: Message) -> None:
        """Takes the announcement of a task, and answers with the job's state."""
        rank = process.rank
        if self._is_of_next_job(process):
            return
        if not self._jobs:
            self._jobs, self._first = wire.unpack(message["job"]), rank
            self._leader, self._cluster = message["leader"], message["cluster"]
            self._size = sum(job in (*TRAIN, "ps") for job in self._jobs)
            needed = {"ps"} if self._jobs[self._leader] == "chief" else {"ps", "worker"}
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
        self._send([rank], {"over": self._result})

    def ended(self, process: Process, failure: str, said_goodbye: bool) -> None:
        """Takes the end of a process."""
        rank, roles = process.rank, self._roles.get(process.rank, set())
        if process.role == "program" and "launcher" in roles:
            roles.discard("program")
        elif process.role in roles:
            # Only a launcher knows that a server has ended well before the others.
            if process.role == "program" and self._jobs[rank] == "ps":
                failure = failure or "its process ended before those that it serves"
            del self._roles[rank]
            if self._result is None:
                self._note_end(rank, failure, _REASON_SECONDS if said_goodbye else 0.0)
                self._look()

    def tick(self, now: float) -> None:
        """Ends the job if the leader has failed, or if tasks have not come in time."""
        if self._failed is not None and now >= self._failed[0]:
            self._end(1, self._failed[1])
        if self._result is None and self._awaited and now >= self._deadline:
            why = f"did not come within {self._timeout:g} s"
            needed = [r for r in self._awaited if r == self._leader or self._jobs[r] == "ps"]
            if needed:
                self._end(1, f"{self._names(needed)} {why}")
            self._ended.update(dict.fromkeys(self._awaited, f"it {why}"))
            self._awaited.clear()
            self._look()
        if self._training and now >= self._leader_ended:
            self._leader_ended = math.inf
            print_line(
                f"{self._names([self._leader])} has ended; {self._names([*self._training])} still "
                "runs. A TensorFlow 1 session also waits for ended workers, unless it has "
                'ConfigProto(device_filters=["/job:ps", "/job:worker/task:INDEX"]).'
            )

    def _is_of_next_job(self, process: Process) -> bool:
        """Returns whether the task runs its next program, whose service has not started yet."""
        if not self._jobs:
            return self._leaves()
        is_next = self._numbers.get(process.rank, process.number) != process.number
        return self._result is not None and process.rank not in self._roles and is_next

    def _note_end(self, rank: int, failure: str, seconds: float) -> None:
        job, name = self._jobs[rank], self._names([rank])
        # TensorFlow waits for a lost ps without end.
        if job == "ps":
            if failure:
                self._end(1, f"{name} is lost, and its variables with it: {failure}")
        elif rank not in self._training:
            print_line(f"{name} is lost, the others continue: {failure or 'its process ended'}")
        else:
            self._training.discard(rank)
            self._ended[rank] = failure
            if failure and rank == self._leader:
                self._failed = (time.monotonic() + seconds, f"{name} has failed: {failure}")
            elif failure:
                print_line(f"{name} has failed, the others continue: {failure}")
            elif rank == self._leader:
                self._leader_ended = time.monotonic() + _WAIT_NOTICE_SECONDS

    def _look(self) -> None:
        """Ends the job if all who train have ended; a server that comes later cannot be told."""
        if self._training or self._awaited or self._failed or self._leader not in self._ended:
            return
        failed = {rank: why for rank, why in sorted(self._ended.items()) if why}
        told = [f"{self._names([rank])} has failed: {why}" for rank, why in failed.items()]
        self._end(int(bool(failed)), "; ".join(told[:_MOST_NAMES]) or "all who train have finished")

    def _end(self, status: int, message: str) -> None:
        if self._result is None:
            self._result = JobResult(status, message)
            # The service does not wait for ever for a stopped or disconnected task.
            self._keep_until = time.monotonic() + self._grace
            self._send(self._roles, {"over": self._result})

    def _names(self, ranks: Sequence[int]) -> str:
        return shorten([*map(self._name_of, sorted(ranks))], _MOST_NAMES)
