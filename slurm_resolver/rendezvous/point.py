"""Where the tasks of a step meet: each task computes it alone, and all get the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional, Tuple

from slurm_resolver.rendezvous.sockets import node_name

if TYPE_CHECKING:
    from slurm_resolver.rendezvous.pmi2 import Pmi2Task  # few steps have it


class Rendezvous(NamedTuple):
    """Where the tasks of a step meet, and which of them this task is.

    All fields are the same in every task but `rank`, `is_host`, `own_node`, `leads_node`, and what
    `pmi2` tells.

    Attributes:
        host, port: the address to connect to.
        other_hosts: where else it may be, at the same port; () where the address is certain.
        node: the name of the node at this address, for messages.
        identity: a text that identifies the step; only tasks of the same step meet.
        rank: the rank of this task.
        is_host: whether this task is the meeting point, which the others connect to.
        own_node: the name of this task's node; "" where it goes to the meeting point by itself.
        leads_node: whether the other tasks of its node come to this task first.
        nodes: the names of the step's nodes; () where they are not known.
        addresses: of this node, where `host` may not resolve; () where they are not known.
        pmi2: by which the tasks share a secret before they meet; None where they do not, in all.
    """

    host: str
    port: int
    node: str
    identity: str
    rank: int
    is_host: bool
    other_hosts: Tuple[str, ...] = ()
    own_node: str = ""
    leads_node: bool = False
    nodes: Tuple[str, ...] = ()
    addresses: Tuple[str, ...] = ()
    pmi2: Optional[Pmi2Task] = None

    def node_socket(self, identity: str) -> str:
        """Returns at which name the first task of this task's node listens for the others."""
        return node_name("meet", identity, self.host, self.port, self.own_node)

    @property
    def name(self) -> str:
        """The meeting point as messages name it."""
        if self.other_hosts:
            others = f"{len(self.other_hosts)} other nodes"
            return f"the meeting point (rank 0, port {self.port} on {self.node} or {others})"
        return f"the meeting point {self.host}:{self.port} (local rank 0 on node {self.node})"
