"""The tasks of a step meet once, and stay in touch until the last one leaves.

One task serves (`service`); every task, including that one, holds one connection to it (`client`).
This package knows ranks and names, but no cluster.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

NETWORK_GRACE = 30.0  # seconds

NameOf = Callable[[int], str]  # from a rank to how messages name its task


class ServiceAddress(NamedTuple):
    """The address of a step's coordination service.

    Only `rank`, `serves` and `starts_program` differ by task.
    """

    host: str
    port: int
    node: str  # for messages
    identity: str  # of the start of the step; a service admits no other
    num_tasks: int
    rank: int  # of this task
    serves: bool  # whether the service runs in this task
    grace: float = NETWORK_GRACE  # seconds for which the network may fail before a task is lost
    starts_program: bool = False  # whether this process starts the program of its task

    @property
    def patience(self) -> float:
        """The seconds for which TensorFlow waits for a silent task; its own default is 10.

        After an outage of almost `grace`, TCP may take as long again to send what was lost, as its
        pauses double. A heartbeat of TensorFlow may take half of the time that is given here.
        """
        return max(10.0, 4 * self.grace)

    @property
    def name(self) -> str:
        """The service as messages name it."""
        return f"the coordination service at {self.host}:{self.port} (local rank 0 on {self.node})"
