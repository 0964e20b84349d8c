"""The part of a task's process in a training with servers: see `training_with_servers`."""

from __future__ import annotations

from slurm_resolver.coordination.client import Client
from slurm_resolver.coordination.training_with_servers import Outcome
from slurm_resolver.coordination.wire import Message


class Member:
    """Announces the task of this process, and learns how the training ends."""

    def __init__(self, client: Client, announced: Message) -> None:
        self.client = client
        self.name = client.name_of(client.address.rank)
        self.announced = announced  # the message of `announcement`
        client.say("training", **announced)

    @property
    def outcome(self) -> Outcome | None:
        """How the training has ended; None before."""
        latest = self.client.latest
        if "over" in latest and latest["over"]["over"]:
            return Outcome(*latest["over"]["over"])
        if "service" in latest:  # its process is lost
            loss = latest["service"]
            return Outcome(1, f"{self.client.name_of(loss['gone'])} is lost: {loss['why']}")
        return None

    def serve(self, timeout: float) -> str:
        """Announces that this task only serves, and waits until the service knows that.

        The training is over if the others do not come in `timeout` seconds. Returns '', or why the
        service refuses this process, or that it has not answered in this time.
        """
        client = self.client
        self.announced.update(serves=True, seconds=timeout)
        client.say("training", **self.announced)
        if client.wait_for(lambda: "over" in client.latest or client.refusal, timeout):
            return client.refusal
        return f"{client.address.name} did not answer within {timeout:g} s: {client.problem}"

    def await_over(self) -> Outcome:
        """Waits until the training is over, and returns how it has ended."""
        self.client.wait_for(lambda: self.outcome)
        assert self.outcome
        return self.outcome
