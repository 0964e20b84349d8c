"""The connections that a server has, and which of them to close where there are too many."""

from __future__ import annotations

import socket
from typing import Dict, List, NamedTuple, Optional

from slurm_resolver.rendezvous.handshake import Challenge
from slurm_resolver.rendezvous.wire import Decoder, Message, Seal


class Peer:
    """A connection.

    Attributes:
        challenge: the handshake that has still to be carried out; None after it.
        source: the address from which it came.
        accepted: whether the server's owner has accepted it as one of a task.
        rank: the rank of that task, where the owner has told.
    """

    def __init__(
        self,
        sock: socket.socket,
        decoder: Decoder,
        challenge: Optional[Challenge],
        source: str = "",
    ) -> None:
        self.source = source
        self.socket = sock
        self.decoder = decoder
        self.challenge = challenge
        self.accepted = False
        self.rank: Optional[int] = None
        self.unsent = bytearray()
        self.seal: Optional[Seal] = None


class Event(NamedTuple):
    """A message of a peer that has carried out the handshake, or the end of an accepted one.

    `message` is None at the end. `reason` tells why it ended; '' where the other process has closed
    it, or is gone. `unreadable` tells that it ended because of what it sent.
    """

    peer: Peer
    message: Optional[Message]
    reason: str = ""
    unreadable: bool = False


class UnknownPeers:
    """The connections of which it is not known whether they are of a task, with their deadlines."""

    def __init__(self) -> None:
        self._deadlines: Dict[Peer, float] = {}  # the first entry has the earliest
        self._by_source: Dict[str, Dict[Peer, None]] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, peer: Peer, deadline: float) -> None:
        """Adds a new connection, whose deadline is later than those of the others."""
        self._deadlines[peer] = deadline
        self._by_source.setdefault(peer.source, {})[peer] = None

    def forget(self, peer: Peer) -> None:
        """Removes a connection, if it is one of them."""
        if self._deadlines.pop(peer, None) is not None:
            del self._by_source[peer.source][peer]
            if not self._by_source[peer.source]:
                del self._by_source[peer.source]

    @property
    def all(self) -> List[Peer]:
        """All of them."""
        return list(self._deadlines)

    @property
    def next_deadline(self) -> Optional[float]:
        """The earliest deadline; None where there is no connection."""
        return next(iter(self._deadlines.values()), None)

    def overdue(self, now: float) -> List[Peer]:
        """Returns those whose deadline is not later than `now`."""
        found = []
        for peer, deadline in self._deadlines.items():
            if deadline > now:
                break
            found.append(peer)
        return found

    @property
    def oldest_of_most(self) -> Peer:
        """The oldest one of the host that has most of them."""
        source = max(self._by_source, key=lambda source: len(self._by_source[source]))
        return next(iter(self._by_source[source]))
