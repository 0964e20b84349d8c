"""A process's part in a job in which some tasks serve others: see `job`."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from typing import Callable, Optional, Sequence, Tuple

from slurm_resolver.coordination import wire
from slurm_resolver.coordination.client import Client
from slurm_resolver.coordination.job import SERVERS, TRAIN, JobResult
from slurm_resolver.coordination.wire import Message

START_SECONDS = 300.0  # for the leader and the servers to come


def announcement(tasks: Sequence[Tuple[str, int, str]], rank: int) -> Optional[Message]:
    """Returns the message by which a task takes part in the job; None if it takes no part.

    That is so for an evaluator, and in a step without servers or without tasks that train. `tasks`
    are job, index and address by rank.
    """
    jobs = [job for job, _, _ in tasks]
    trainers = [rank for rank, job in enumerate(jobs) if job in TRAIN]
    if jobs[rank] not in (*TRAIN, *SERVERS) or not trainers or not {"ps", "dispatcher"} & {*jobs}:
        return None
    leader = min(trainers, key=lambda rank: tasks[rank][:2])
    digest = hashlib.sha256(json.dumps(tasks).encode()).hexdigest()[:16]
    # All jobs take some 100 bytes, however many tasks there are.
    packed = wire.pack([json.dumps(job) for job in jobs])
    return {"job": packed, "leader": leader, "cluster": digest, "serves": jobs[rank] in SERVERS}


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
        client.listen("over", self._take_state)
        client.listen("gone", self._take_loss)
        client.say("job", **announced)

    def serve(self, timeout: float) -> None:
        """Announces that this task only serves, and that the others must come within `timeout`."""
        self.client.say("job", **{**self._announced, "serves": True, "seconds": timeout})

    def await_joined(self, timeout: float) -> None:
        """Waits until the service knows of this task; after `timeout` seconds, the job is over.

        Returns as well if the service refuses this process: see `Client.refusal`.
        """
        until = time.monotonic() + timeout
        while not (self._joined.wait(0.1) or self.client.refusal):
            if time.monotonic() >= until:
                name, problem = self.client.address.name, self.client.problem
                self._end(1, f"{name} did not answer within {timeout:g} s: {problem}")
                return

    def await_over(self) -> JobResult:
        """Waits until the job is over, and returns how it has ended."""
        self._over.wait()
        assert self.result is not None
        return self.result

    def _end(self, status: int, message: str) -> None:
        if self.result is None:
            self.result = JobResult(status, message)
            self._over.set()
            threading.Thread(target=self._on_over, args=(self.result,), daemon=True).start()

    def _take_state(self, message: Message) -> None:
        self._joined.set()
        if message["over"] is not None:
            self._end(*message["over"])

    def _take_loss(self, message: Message) -> None:
        if message["gone"] is None:  # the process of the service
            self._end(1, f"{self.client.name_of(message['rank'])} is lost: {message['why']}")
