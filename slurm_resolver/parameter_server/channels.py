"""The monitor's side of the connections that the tasks of a node share.

One process of the node, the relay, passes on what the others and the monitor send each other. It
cannot speak for them, as each carries out the handshake for itself and seals its messages. To the
server each of them is a `Peer` of its own, a channel. Over the relay's connection go, after its
handshake, these messages; C is the number of a channel:

    {"relay": true}                      the first message: this connection is a relay's
    {"open": C, "own": false}            a task has come; "own" where it is the relay's own process
    {"channel": C, "bytes": "…"}         in both directions, in base64
    {"close": C}                         in both directions: the other end has closed it
    {"lost": C}                          the task goes on, and comes another way

| event | what it means for the channels |
|---|---|
| the relay tells that one is closed | that process has ended |
| the relay tells that one is lost | it may come again |
| the relay's connection is closed | its own process has ended; the other channels are lost |
| the relay's connection is lost | all are lost |
| nothing has answered on it for the grace | all are lost, and silent |

So a task that is killed at the same moment as its relay is given up after the grace, and one that
is killed while its relay is stopped when the relay goes on or ends.
"""

from __future__ import annotations

import base64
from typing import Dict, Iterator, List, Optional

from slurm_resolver.parameter_server.observed_socket import ObservedSocket, ObservingListener
from slurm_resolver.rendezvous.handshake import Challenge, Secret
from slurm_resolver.rendezvous.peer import Event, Peer
from slurm_resolver.rendezvous.server import Server
from slurm_resolver.rendezvous.wire import Decoder, Limits, Message


class Channel(Peer):
    """A task's way through its node's relay.

    Attributes:
        relay: the connection that it goes over, and whose socket is also the channel's.
        number: by which the relay knows it.
        is_own: whether it is of the relay's own process.
        lost: whether it has ended without being closed at the other end.
        silent: whether that was because nothing had answered for the grace.
    """

    def __init__(
        self, relay: Peer, number: int, is_own: bool, decoder: Decoder, challenge: Challenge
    ) -> None:
        super().__init__(relay.socket, decoder, challenge, relay.source)
        self.relay = relay
        self.number = number
        self.is_own = is_own
        self.lost = self.silent = False


class ChannelServer(Server):
    """A server to which tasks come by a connection of their own, or through one of their node."""

    def __init__(
        self,
        identity: str,
        listener: ObservingListener,
        tasks: int,
        secret: Secret,
        limits: Limits,
    ) -> None:
        """Serves from now on; see `Server`."""
        # A node has at most one relay more than it has tasks.
        super().__init__(identity, [listener], 2 * tasks, secret, limits)
        self._channels: Dict[Peer, Dict[int, Channel]] = {}  # by relay, by number

    @property
    def peers(self) -> List[Peer]:
        """The connections and channels of tasks that have been accepted.

        A relay's own comes after the other ones through it: its process may end when it has the
        last message, and by then the others have theirs.
        """
        tasks = [peer for peer in super().peers if peer not in self._channels]
        return sorted(tasks, key=lambda peer: isinstance(peer, Channel) and peer.is_own)

    @property
    def has_channels(self) -> bool:
        """Whether there are tasks that have come through another one."""
        return any(isinstance(peer, Channel) and peer.accepted for peer in self._peers)

    def events(self, timeout: Optional[float]) -> Iterator[Event]:
        """Waits at most `timeout` seconds until something happens, and yields what has happened."""
        for event in super().events(timeout):
            peer, message = event.peer, event.message
            if peer in self._channels:
                yield from self._take_relayed(peer, message)
            elif message is not None and "relay" in message and _may_relay(peer):
                self.accept(peer)
                self._channels[peer] = {}
            else:
                yield event

    def drop(self, peer: Peer) -> None:
        """Closes a connection, without an event."""
        if not isinstance(peer, Channel):
            super().drop(peer)
        elif peer in self._peers:
            self._forget(peer)
            self.send(peer.relay, {"close": peer.number})

    def drop_old(self, peer: Peer) -> None:
        """Closes a connection whose process has come by another one.

        A relay need not be told, which may be stopped: what it has not read when it is killed would
        make its own end look like that of the connection.
        """
        if isinstance(peer, Channel):
            self._forget(peer)
        else:
            self.drop(peer)

    def _forget(self, channel: Channel) -> None:
        self._peers.discard(channel)
        self._unknown.forget(channel)
        self._channels.get(channel.relay, {}).pop(channel.number, None)

    @property
    def _with_socket(self) -> List[Peer]:
        return [peer for peer in self._peers if not isinstance(peer, Channel)]

    def _flush(self, peer: Peer) -> None:
        if not isinstance(peer, Channel):
            super()._flush(peer)
        elif peer in self._peers:
            data = base64.b64encode(peer.unsent).decode()
            peer.unsent.clear()
            self.send(peer.relay, {"channel": peer.number, "bytes": data})

    def _take_relayed(self, relay: Peer, message: Optional[Message]) -> Iterator[Event]:
        """Takes a message of a relay, or the end of its connection."""
        if message is None:
            yield from self._end_all(relay)
            return
        for word, number in message.items():
            if type(number) is not int:
                continue
            channel = self._channels[relay].get(number)
            if word == "open" and channel is None:
                self._open(relay, number, message.get("own") is True)
            elif word == "channel" and channel is not None:
                yield from self._take(channel, _bytes_of(message), "")
            elif word in ("close", "lost") and channel is not None:
                channel.lost = word == "lost"
                self._forget(channel)
                if channel.accepted:
                    yield Event(channel, None)

    def _open(self, relay: Peer, number: int, is_own: bool) -> None:
        if not self._listeners.sockets or not self._make_room():
            self.send(relay, {"close": number})
            return
        challenge = Challenge(self._identity, self.secret)
        decoder = Decoder(self._limits.message)
        channel = self._channels[relay][number] = Channel(relay, number, is_own, decoder, challenge)
        self._begin(channel, challenge)

    def _end_all(self, relay: Peer) -> Iterator[Event]:
        """Ends the channels of a relay whose connection has ended."""
        sock = relay.socket
        is_lost = isinstance(sock, ObservedSocket) and sock.lost
        is_silent = isinstance(sock, ObservedSocket) and sock.silent
        channels = list(self._channels.pop(relay).values())
        for channel in sorted(channels, key=lambda channel: channel.is_own):
            self._forget(channel)
            channel.lost = is_lost or not channel.is_own
            channel.silent = is_silent
            if channel.accepted:
                yield Event(channel, None)


def _bytes_of(message: Message) -> bytes:
    """Returns what has come over a channel; none, which ends it, where that cannot be read."""
    try:
        return base64.b64decode(message["bytes"], validate=True)
    except (KeyError, TypeError, ValueError):
        return b""


def _may_relay(peer: Peer) -> bool:
    return not peer.accepted and not isinstance(peer, Channel)


def was_lost(peer: Peer) -> bool:
    """Returns whether a connection has ended without being closed at the other end."""
    end = peer if isinstance(peer, Channel) else peer.socket
    return isinstance(end, (Channel, ObservedSocket)) and end.lost


def was_silent(peer: Peer) -> bool:
    """Returns whether a connection has ended because nothing had answered for the grace."""
    end = peer if isinstance(peer, Channel) else peer.socket
    return isinstance(end, (Channel, ObservedSocket)) and end.silent
