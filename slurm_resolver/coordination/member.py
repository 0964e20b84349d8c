"""The part of a task's process in a training with servers: see `training_with_servers`."""

from __future__ import annotations

from threading import Thread
from typing import Callable

from slurm_resolver.coordination.client import Client
from slurm_resolver.coordination.training_with_servers import Outcome
from slurm_resolver.coordination.wire import Message


class Member:
    """Announces the task of this process, and learns how the training ends."""

    outcome: Outcome | None = None  # how the training has ended
    _has_joined = False

    def __init__(
        self, client: Client, announced: Message, on_over: Callable[[Member, Outcome], None]
    ) -> None:
        """Announces the task; `on_over` is called in a thread when the training is over."""
        self.client = client
        self.name = client.name_of(client.address.rank)
        self.announced = announced  # the message of `announcement`
        self._on_over = on_over
        client.listen("over", self._take_state)
        client.listen("gone", self._take_loss)
        client.say("training", **announced)

    def serve(self, timeout: float) -> None:
        """Announces that this task only serves, and waits until the service knows that.

        The training is over if that takes longer than `timeout` seconds, or if the others do not
        come in this time. Returns as well if the service refuses this process: see
        `Client.refusal`.
        """
        client = self.client
        self.announced.update(serves=True, seconds=timeout)
        client.say("training", **self.announced)
        if not client.wait_for(lambda: self._has_joined or client.refusal, timeout):
            self._end(
                1, f"{client.address.name} did not answer within {timeout:g} s: {client.problem}"
            )

    def await_over(self) -> Outcome:
        """Waits until the training is over, and returns how it has ended."""
        self.client.wait_for(lambda: self.outcome)
        assert self.outcome
        return self.outcome

    def _end(self, status: int, message: str) -> None:
        if not self.outcome:
            self.outcome = Outcome(status, message)
            Thread(target=self._on_over, args=(self, self.outcome), daemon=True).start()

    def _take_state(self, message: Message) -> None:
        self._has_joined = True
        if message["over"]:
            self._end(*message["over"])

    def _take_loss(self, message: Message) -> None:
        if "service" in message:  # it was in that process
            self._end(1, f"{self.client.name_of(message['gone'])} is lost: {message['why']}")
