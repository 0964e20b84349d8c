"""The tasks of a step meet once, and stay in touch until the last one leaves.

One task serves (see `service`); every task, that one too, holds one connection to it (`client`).
The room knows ranks and names, but no cluster.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

NETWORK_GRACE = 30.0  # seconds

NameOf = Callable[[int], str]  # from a rank to how messages name its task


class ServiceAddress(NamedTuple):
    """The address of a step's coordination service, and what this task tells it about itself.

    Every field but `rank` and `serves` is the same in all tasks.

    Attributes:
        host, port: what to connect to.
        node: the name of the node at this address, for messages.
        identity: identifies the start of the step; a service admits no other.
        num_tasks: the number of tasks in the step.
        rank: the rank of this task.
        serves: whether the service runs in this task.
        grace: seconds that the network may fail without a task being given up.
    """

    host: str
    port: int
    node: str
    identity: str
    num_tasks: int
    rank: int
    serves: bool
    grace: float = NETWORK_GRACE

    @property
    def name(self) -> str:
        """The service as messages name it."""
        return f"the coordination service at {self.host}:{self.port} (local rank 0 on {self.node})"
