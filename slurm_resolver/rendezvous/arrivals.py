"""How a task comes to another one: to the first of its node, or to the meeting point."""

from __future__ import annotations

import socket
from typing import List, Optional, Sequence

from slurm_resolver.rendezvous.gathering import Gathering
from slurm_resolver.rendezvous.peer import Event
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.rendezvous.server import Server
from slurm_resolver.rendezvous.sockets import listen_at_name
from slurm_resolver.rendezvous.wire import Message

BACKLOG = 1024


def listen_on_node(rendezvous: Rendezvous, identity: str) -> List[socket.socket]:
    """Returns the socket for the other tasks of this node; [] where this task serves none."""
    if not rendezvous.leads_node:
        return []
    try:
        return [listen_at_name(rendezvous.node_socket(identity), BACKLOG)]
    except OSError:  # another process has the name: then they go to the meeting point themselves
        return []


def take_visit(
    server: Server, gathering: Gathering, event: Event, names: Sequence[str]
) -> Optional[int]:
    """Takes a task that comes by this message, and returns its rank; None where it cannot be."""
    peer, message = event.peer, event.message or {}
    rank = gathering.add(peer, message)
    if rank is not None and not peer.accepted:
        server.accept(peer)
        server.send(peer, {"taken": True})
    elif rank is None:
        if gathering.is_of_other(message):
            refused = message["rank"]
            server.send(peer, {"refused": refused} if peer.accepted else came_twice(names[refused]))
        if not peer.accepted:
            server.drop(peer)
    return rank


def came_twice(name: str) -> Message:
    """Returns what a process is told that comes as a task for which another one has come."""
    error = f"{name} came twice: two processes act as this task. Start one a task, with srun."
    return {"error": error, "twice": True}
