"""Where the tasks of a step meet: worked out by each task alone, the same in all of them."""

from __future__ import annotations

from typing import NamedTuple


class Rendezvous(NamedTuple):
    """Where the tasks of a step meet, and which of them this one is.

    Attributes:
        host, port: what to connect to.
        node: the node that it is on, as messages name it.
        identity: the step's; only tasks of the same step meet.
        rank: this task's. All but `rank` and `is_host` are the same in every task.
        is_host: whether this task is the one that the others come to.
    """

    host: str
    port: int
    node: str
    identity: str
    rank: int
    is_host: bool

    @property
    def name(self) -> str:
        """The place as messages name it."""
        return f"the meeting point {self.host}:{self.port} (local rank 0 on node {self.node})"
