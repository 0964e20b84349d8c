"""When tasks that only serve end: as soon as the training that they serve is over.

The servers are the parameter servers, and the workers of a coordinator. The others train. Their
leader is the chief, or worker 0 without a chief.

| event | consequence |
|---|---|
| the leader, and all others that train, have said goodbye | the training is over, status 0 |
| the leader is lost, or says goodbye with a failure | the training is over, status 1 |
| the leader has left, and workers still run after 30 s | one line names them |
| another task that trains is lost, or fails | the others continue; the status will be 1 |
| a worker that only serves is lost | the others continue |
| the last worker that only serves is lost | the training is over, status 1 |
| a ps, or the process of the coordination service, is lost | the training is over, status 1 |
| the leader or a ps does not come in time | the training is over, status 1 |
| tasks define different clusters | the training is over, status 1 |

`ServedTraining` is the service's part, and `member.Member` the part of a task's process.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Sequence
from hashlib import sha256
from json import dumps
from math import inf
from time import monotonic
from typing import NamedTuple

from slurm_resolver.coordination import TAKE_PART, TRAIN
from slurm_resolver.coordination.tasks import Tasks
from slurm_resolver.coordination.wire import Message, pack, unpack
from slurm_resolver.log import print_line
from slurm_resolver.timeouts import Timeouts
from slurm_resolver.wording import shorten

# The loss of a server may become known this long after the failure that it causes in the leader.
_REASON_SECONDS = 3.0


class Outcome(NamedTuple):
    """How the training has ended: the exit status of the tasks that serve, and a message."""

    status: int
    message: str


def announcement(tasks: Sequence[tuple[str, int, str]], rank: int) -> Message | None:
    """Returns the message by which a task takes part in the training, or serves it.

    It is None for an evaluator, and in a step without parameter servers or without tasks that
    train. `tasks` are job, index and address by rank.
    """
    jobs = [job for job, _, _ in tasks]
    trainers = [rank for rank, job in enumerate(jobs) if job in TRAIN]
    if jobs[rank] not in TAKE_PART or not trainers or "ps" not in jobs:
        return None
    # The jobs of all tasks take some 100 bytes, however many tasks there are.
    return {
        "training": pack(map(dumps, jobs)),
        "leader": min(trainers, key=tasks.__getitem__),
        "cluster": sha256(dumps(tasks).encode()).hexdigest()[:16],
        "serves": jobs[rank] == "ps",
    }


class ServedTraining:
    """What the service knows of the training; it runs in the service's thread."""

    # the job of each task, by rank; () before the first announcement
    _jobs: Sequence[str] = ()
    # the leader's rank, and a digest of the cluster, both as the first task has them
    _leader = 0
    _cluster = ""
    # when the service may end although some tasks have not been told
    _keep_until = inf
    _outcome: Outcome | None = None

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        # by rank of a task that has come: None, or once it has ended, why it failed or ''
        self._ends: dict[int, str | None] = {}
        # the ranks of those that train; beside a chief, workers may only serve
        self._trainers: set[int] = set()

    def has_to_tell(self) -> bool:
        """Returns whether some tasks have to be told how the training ends."""
        if monotonic() >= self._keep_until:
            return False
        if None in self._ends.values():
            return True
        if not self._outcome:
            return bool(self._ends.get(self._leader))  # its failure counts a little later
        # Tasks that come late to a failed training are told.
        coming = [job for job in self._jobs if job in TAKE_PART]
        return self._outcome.status != 0 and len(self._ends) < len(coming)

    def message(self, rank: int, message: Message) -> None:
        """Takes the announcement of a task, and answers with the state of the training."""
        if not self._jobs:
            self._jobs = unpack(message["training"])
            self._leader = message["leader"]
            self._cluster = message["cluster"]
            self._trainers = self._ranks_of(self._jobs[self._leader])
        self._ends[rank] = None
        if message["serves"]:
            self._trainers.discard(rank)
        else:
            self._trainers.add(rank)
        if "seconds" in message:
            get_running_loop().call_later(message["seconds"], self._end_wait, message["seconds"])
        if message["cluster"] != self._cluster:
            names = self._tasks.names([next(iter(self._ends)), rank])
            self._end(f"{names} define different clusters: all tasks need the same arguments")
        self._end_if_finished()
        self._tasks.send([rank], {"over": self._outcome})

    def _ranks_of(self, wanted: str) -> set[int]:
        return {rank for rank, job in enumerate(self._jobs) if job == wanted}

    def ended(self, rank: int, failure: str) -> None:
        """Takes the end of a task."""
        if rank not in self._ends:
            return
        self._ends[rank] = failure
        if self._outcome:
            return
        name = self._tasks.name_of(rank)
        call_later = get_running_loop().call_later
        if rank not in self._trainers:
            failure = failure or "its process ended before those that it serves"
            workers = map(self._ends.get, self._ranks_of("worker"))
            # TensorFlow waits without end for a lost ps, and for a worker if none is left.
            if self._jobs[rank] == "ps" or None not in workers:
                self._end(f"{name} is lost, and the training needs it: {failure}")
            else:
                print_line(f"{name} is lost; the others continue: {failure}")
        elif rank != self._leader and failure:
            print_line(f"{name} has failed; the others continue: {failure}")
        elif failure:
            call_later(_REASON_SECONDS, self._end, f"{name} has failed: {failure}")
        elif rank == self._leader:
            call_later(Timeouts.still_running, self._report_running)
        self._end_if_finished()

    def _missing(self) -> set[int]:
        """Returns the leader and the servers that have not come yet."""
        return {self._leader, *self._ranks_of("ps")} - self._ends.keys()

    def _end_wait(self, timeout: float) -> None:
        """Ends the training if the leader or a server has not come in time."""
        why = f"did not start within {timeout:g} s"
        missing = self._missing()
        if missing:
            self._end(f"{self._tasks.names(missing)} {why}")
        for rank in self._trainers - self._ends.keys():
            self._ends[rank] = f"it {why}"
        self._end_if_finished()

    def _report_running(self) -> None:
        """Names the workers that still run although the leader has ended."""
        still = [rank for rank in self._trainers if self._ends.get(rank, "") is None]
        if still and not self._outcome:
            print_line(
                f"{self._tasks.name_of(self._leader)} has ended; still running: "
                f"{self._tasks.names(still)}. A TensorFlow 1 session also waits for ended workers, "
                'unless it has ConfigProto(device_filters=["/job:ps", "/job:worker/task:INDEX"]).'
            )

    def _end_if_finished(self) -> None:
        """Ends the training once all who train have ended.

        A server that comes later cannot be told.
        """
        ends = {rank: self._ends.get(rank) for rank in sorted(self._trainers)}
        if ends.get(self._leader) != "" or None in ends.values() or self._missing():
            return
        failed = [
            f"{self._tasks.name_of(rank)} has failed: {end}" for rank, end in ends.items() if end
        ]
        self._end(shorten(failed) or "all who train have finished", status=int(bool(failed)))

    def _end(self, message: str, status: int = 1) -> None:
        """Notes how the training has ended, unless that is known, and tells all tasks."""
        if not self._outcome:
            self._outcome = Outcome(status, message)
            # The service does not wait for ever for a stopped or disconnected task.
            self._keep_until = monotonic() + self._tasks.address.grace
            self._tasks.send(self._ends, {"over": self._outcome})
