"""A server to which all tasks of a step connect: one thread serves a socket for each connection."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from typing import Iterator, List, Optional, Sequence, Set

from slurm_resolver.rendezvous.handshake import NO_SECRET, Challenge, Secret
from slurm_resolver.rendezvous.listeners import Listeners
from slurm_resolver.rendezvous.peer import Event, Peer, UnknownPeers
from slurm_resolver.rendezvous.sockets import (
    allow_open_files,
    close_copy,
    find_vanished_peers,
    is_of_this_user,
)
from slurm_resolver.rendezvous.wire import (
    LIMITS,
    Connection,
    Decoder,
    Limits,
    Message,
    WireError,
    encode,
    frame,
    to_json,
)

_RECEIVE_BYTES = 64 * 1024
_FINISH_SECONDS = 60.0  # the most that peers may take for the last message


class Server:
    """Serves the connections that come to its listening sockets.

    A connection is closed unless the handshake is carried out and `accept` is called for it within
    `Limits.handshake_seconds`. Where there are more than `Limits.unknown_connections` beyond one
    for each task, the one that has waited longest for that is closed, of those from the host that
    has most, so that strangers cannot keep tasks out. Only `events` and `finish` block.
    """

    def __init__(
        self,
        identity: str,
        listeners: Sequence[socket.socket],
        tasks: int,
        secret: Secret = NO_SECRET,
        limits: Limits = LIMITS,
    ) -> None:
        """Serves from now on.

        Args:
            identity: of what the tasks join; who comes for something else is closed.
            listeners: sockets that listen; the server closes them.
            tasks: how many connections there may be at a time, and `Limits.unknown_connections`
                more.
            secret: what who comes over TCP has to know. Within the node the kernel tells whose
                process it is.
            limits: what a connection may cost.
        """
        self._identity = identity
        self.secret = secret
        self._limits = limits
        self._max_connections = tasks + limits.unknown_connections
        self._selector = selectors.DefaultSelector()
        self._listeners = Listeners(self._selector, self._greet)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._peers: Set[Peer] = set()
        self._unknown = UnknownPeers()
        self._end_events: List[Event] = []
        self.unproven = 0  # how many came for this, and did not know the secret
        if listeners:
            allow_open_files(self._max_connections)
        for listener in listeners:
            self.listen(listener)

    @property
    def lacks_files(self) -> bool:
        """Whether connections had to wait for a file descriptor."""
        return self._listeners.lacks_files

    @property
    def peers(self) -> List[Peer]:
        """The connections that have been accepted."""
        return [peer for peer in self._peers if peer.accepted]

    def events(self, timeout: Optional[float]) -> Iterator[Event]:
        """Waits at most `timeout` seconds until something happens, and yields what has happened."""
        for key, ready in self._selector.select(self._seconds_to_wait(timeout)):
            if isinstance(key.data, Peer):
                if ready & selectors.EVENT_WRITE:
                    self._flush(key.data)
                if ready & selectors.EVENT_READ:
                    yield from self._read(key.data)
            elif key.fileobj is self._woken:
                self._woken.recv(_RECEIVE_BYTES)
            elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._listeners.sockets:
                self._listeners.accept(key.fileobj)
        now = time.monotonic()
        for peer in self._unknown.overdue(now):
            self.drop(peer)
        self._listeners.look_at_the_clock(now)
        end_events, self._end_events = self._end_events, []
        yield from end_events

    def listen(self, listener: socket.socket) -> None:
        """Serves the connections that come to one more listening socket."""
        self._listeners.add(listener)

    def adopt(self, connection: Connection) -> Peer:
        """Serves a connection that this process has opened, and returns it as a peer.

        Messages that it has received already are lost.
        """
        connection.socket.setblocking(False)
        peer = Peer(connection.socket, connection.decoder, None)
        peer.seal = connection.seal
        peer.accepted = True
        self._peers.add(peer)
        self._selector.register(peer.socket, selectors.EVENT_READ, peer)
        return peer

    def accept(self, peer: Peer, rank: Optional[int] = None) -> None:
        """Marks a connection as one of a task."""
        self._unknown.forget(peer)
        peer.accepted, peer.rank = True, rank

    def send(self, peer: Peer, message: Message) -> None:
        """Sends a message. Where the connection has ended, an event tells so, and not an error."""
        self._send(peer, encode(message, peer.seal))

    def has(self, peer: Peer) -> bool:
        """Returns whether a connection is still there."""
        return peer in self._peers

    def drop(self, peer: Peer) -> None:
        """Closes a connection, without an event."""
        if peer in self._peers:
            self._peers.discard(peer)
            self._unknown.forget(peer)
            self._selector.unregister(peer.socket)
            peer.socket.close()

    def finish(self, message: Message, seconds: float) -> None:
        """Sends all accepted peers a last message, waits until they close, and closes everything.

        It stops listening first: a task that has the message may connect to another server at the
        same port at once.

        Args:
            message: the last message.
            seconds: the most that it may take while no peer takes any of it.
        """
        self._listeners.close()
        for peer in self._unknown.all:
            self.drop(peer)
        body = to_json(message)
        for peer in self.peers:
            self._send(peer, frame(body, peer.seal))
        sending = self._with_socket
        deadline, last = time.monotonic() + seconds, time.monotonic() + _FINISH_SECONDS
        unsent = 0
        while True:
            before, unsent = unsent, sum(len(peer.unsent) for peer in sending)
            if unsent < before:
                deadline = min(last, time.monotonic() + seconds)
            for peer in sending:
                if not peer.unsent and peer in self._peers:
                    # What it has not read yet would be lost if this end closed with data unread.
                    with contextlib.suppress(OSError):
                        peer.socket.shutdown(socket.SHUT_WR)
            sending = [peer for peer in sending if peer.unsent]
            if not self._peers or time.monotonic() >= deadline:
                break
            for _ in self.events(deadline - time.monotonic()):
                pass  # the events no longer matter
        self.close()

    def wake(self) -> None:
        """Makes `events` return at once; another thread may call this."""
        with contextlib.suppress(OSError):
            self._wake.send(b"w")

    def close(self) -> None:
        """Closes all connections, and stops listening."""
        self._listeners.close()
        for peer in list(self._peers):
            self.drop(peer)
        for sock in (self._wake, self._woken):
            sock.close()
        self._selector.close()

    def close_in_child(self) -> None:
        """Closes a forked process's copies of all sockets; the parent's go on."""
        sockets = [peer.socket for peer in list(self._peers)]
        for sock in [*sockets, *self._listeners.sockets, self._wake, self._woken]:
            close_copy(sock)

    @property
    def _with_socket(self) -> List[Peer]:
        """The connections that have a socket of their own."""
        return list(self._peers)

    def _seconds_to_wait(self, timeout: Optional[float]) -> Optional[float]:
        now = time.monotonic()
        times = (self._unknown.next_deadline, self._listeners.again_at)
        seconds = [max(0.0, when - now) for when in times if when is not None]
        if timeout is not None:
            seconds.append(max(0.0, timeout))
        return min(seconds, default=None)

    def _greet(self, sock: socket.socket, source: str) -> None:
        """Takes a new connection from a host, and sends it the challenge."""
        secret = self.secret
        if sock.family == socket.AF_UNIX:
            secret = NO_SECRET
            if not is_of_this_user(sock):
                sock.close()
                return
        else:
            with contextlib.suppress(OSError):  # it may have ended already
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                find_vanished_peers(sock)
        if not self._make_room():
            sock.close()
            return
        sock.setblocking(False)
        challenge = Challenge(self._identity, secret)
        peer = Peer(sock, Decoder(self._limits.message), challenge, source)
        self._selector.register(sock, selectors.EVENT_READ, peer)
        self._begin(peer, challenge)

    def _make_room(self) -> bool:
        """Returns whether there may be one more connection; it may have closed another for that."""
        if len(self._peers) >= self._max_connections:
            if not self._unknown:
                return False
            self.drop(self._unknown.oldest_of_most)
        return True

    def _begin(self, peer: Peer, challenge: Challenge) -> None:
        """Sends a new connection its challenge, and waits for the proof."""
        self._peers.add(peer)
        self._unknown.add(peer, time.monotonic() + self._limits.handshake_seconds)
        self.send(peer, challenge.message)

    def _read(self, peer: Peer) -> Iterator[Event]:
        if peer not in self._peers:
            return
        reason = ""
        try:
            received = peer.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            received = b""
        except OSError as error:
            received, reason = b"", f"its node does not answer any more ({error.strerror})"
        yield from self._take(peer, received, reason)

    def _take(self, peer: Peer, received: bytes, reason: str) -> Iterator[Event]:
        """Takes the bytes that have come over a connection; none at its end, with the reason."""
        unreadable = False
        try:
            messages = peer.decoder.feed(received) if received else []
            if messages and peer.challenge is not None:
                # Whatever comes with the proof is not sealed: a task waits for the answer.
                self._check_proof(peer, peer.challenge, messages)
                return
            for message in messages:
                yield Event(peer, message)
                if peer not in self._peers:
                    return
        except WireError as error:
            received, reason, unreadable = b"", str(error), True
        if not received:
            self.drop(peer)
            if peer.accepted:
                self._end_events.append(Event(peer, None, reason, unreadable))

    def _check_proof(self, peer: Peer, challenge: Challenge, messages: List[Message]) -> None:
        answer = challenge.answer(messages[0]) if len(messages) == 1 else None
        if answer is None or challenge.seals is None:
            self.unproven += messages[0].get("identity") == self._identity
            self.drop(peer)
            return
        self.send(peer, answer)
        peer.challenge = None
        peer.decoder.seal, peer.seal = challenge.seals

    def _send(self, peer: Peer, data: bytes) -> None:
        if peer in self._peers:
            peer.unsent += data
            self._flush(peer)

    def _flush(self, peer: Peer) -> None:
        if peer not in self._peers:
            return
        try:
            while peer.unsent:
                del peer.unsent[: peer.socket.send(peer.unsent[:_RECEIVE_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            peer.unsent.clear()  # reading from it will tell that it has ended
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        if self._selector.get_key(peer.socket).events != events:
            self._selector.modify(peer.socket, events, peer)
