"""The part of a task's process in a job of tasks that serve and tasks that train: see `serving`."""

from __future__ import annotations

import threading
from typing import Callable

from slurm_resolver.coordination.client import Client
from slurm_resolver.coordination.serving import JobResult
from slurm_resolver.coordination.wire import Message


class Member:
    """Announces the task of this process to the job, and learns how the job ends."""

    def __init__(
        self, client: Client, announced: Message, on_over: Callable[[Member, JobResult], None]
    ) -> None:
        """Announces the task; `on_over` is called in a thread when the job is over."""
        self.client = client
        self.name = client.name_of(client.address.rank)
        self.serves: bool = announced["serves"]  # whether this task only serves others
        self.result: JobResult | None = None  # how the job has ended
        self._announced = announced
        self._on_over = on_over
        self._has_joined = False
        client.listen("over", self._take_state)
        client.listen("gone", self._take_loss)
        client.say("job", **announced)

    def serve(self, timeout: float) -> None:
        """Announces that this task only serves, and that the others must come within `timeout`."""
        self.serves = True
        self._announced.update(serves=True, seconds=timeout)
        self.client.say("job", **self._announced)

    def await_joined(self, timeout: float) -> None:
        """Waits until the service knows of this task; after `timeout` seconds, the job is over.

        Returns as well if the service refuses this process: see `Client.refusal`.
        """
        client = self.client
        if not client.wait_for(lambda: self._has_joined or client.refusal, timeout):
            self._end(
                1, f"{client.address.name} did not answer within {timeout:g} s: {client.problem}"
            )

    def await_over(self) -> JobResult:
        """Waits until the job is over, and returns how it has ended."""
        self.client.wait_for(lambda: self.result)
        assert self.result is not None
        return self.result

    def _end(self, status: int, message: str) -> None:
        if self.result is None:
            self.result = JobResult(status, message)
            threading.Thread(target=self._on_over, args=(self, self.result), daemon=True).start()

    def _take_state(self, message: Message) -> None:
        self._has_joined = True
        if message["over"]:
            self._end(*message["over"])

    def _take_loss(self, message: Message) -> None:
        if "service" in message:  # it was in that process
            self._end(1, f"{self.client.name_of(message['gone'])} is lost: {message['why']}")
