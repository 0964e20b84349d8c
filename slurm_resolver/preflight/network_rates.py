"""What each node sends to its neighbours, in the order of the ranks.

An all-reduce takes equally long in all tasks: it does not show which node is slow.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination.client import connect
from slurm_resolver.start.probe import call, listening

_SECONDS = 0.3  # of a measurement
_NEIGHBOURS = (1, -1, 1, -1, 1, -1)  # of which the fastest counts: another program may disturb
_PIECE = 256 * 1024
_LEAST_RATE = 0.001  # GB/s
_MEET_SECONDS = 60.0


def measure_rate(cluster: Cluster) -> float | None:
    """Returns GB/s that the first task of a node sends to the better of two other nodes.

    Every task has to call this, before TensorFlow listens at its port. Returns None in the node's
    other tasks, and where there is one node.
    """
    ends = [task for task in cluster.tasks if task.local_rank == 0]
    own = cluster.task
    if len(ends) < 2 or not own or not cluster.service:
        return None
    client = connect(cluster.service, cluster.name_of)
    rates = []
    with listening(own, _receive):
        for neighbour in _NEIGHBOURS:
            client.gather("the network measurement", None, _MEET_SECONDS)
            if own in ends:
                rates.append(_rate(ends[(ends.index(own) + neighbour) % len(ends)].address))
        client.gather("the network measurement", None, _MEET_SECONDS)
    return max(rates, default=None)


def _receive(connection: socket.socket) -> None:
    """Reads all that comes; the connection is closed after it."""
    while connection.recv(_PIECE):
        pass


def _rate(address: str) -> float:
    """Returns GB/s that arrive at an address; the least rate if nothing does."""
    begin = time.monotonic()
    count = 0
    with suppress(OSError), call(address) as sock:
        while time.monotonic() < begin + _SECONDS:
            count += sock.send(bytes(_PIECE))
        sock.shutdown(socket.SHUT_WR)
        sock.recv(1)  # ends when the other side has read all
        return max(_LEAST_RATE, count / (time.monotonic() - begin) / 1e9)
    return _LEAST_RATE
