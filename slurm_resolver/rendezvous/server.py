"""A server to which all tasks of a step connect: one thread serves a socket for each task."""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import time
from typing import Dict, Iterator, List, NamedTuple, Optional, Set

from slurm_resolver.rendezvous.wire import (
    LIMITS,
    Decoder,
    Limits,
    Message,
    WireError,
    close_copy,
    encode,
    find_vanished_peers,
)

_RECEIVE_BYTES = 64 * 1024
_ACCEPT_AGAIN_SECONDS = 0.2
_OTHER_FILES = 1024  # file descriptors for everything else that the process has open


class Peer:
    """A connection; `rank` is None as long as it is not known to be a task of this step."""

    def __init__(self, sock: socket.socket, max_bytes: int) -> None:
        self.socket = sock
        self.rank: Optional[int] = None
        self.decoder = Decoder(max_bytes)
        self.unsent = bytearray()


class Event(NamedTuple):
    """A message of a peer, or the end of its connection: `message` is None then.

    `reason` tells why it ended; '' where the other process has closed it, or is gone.
    """

    peer: Peer
    message: Optional[Message]
    reason: str = ""


class Server:
    """Listens at a port of this node, on all its IPv4 and IPv6 addresses.

    A new connection is closed unless `accept` is called for it within `Limits.handshake_seconds`.
    Only `events` and `finish` block.
    """

    def __init__(self, port: int, tasks: int, limits: Limits = LIMITS) -> None:
        """Listens from now on.

        Args:
            port: the port to listen at.
            tasks: how many tasks may be connected at a time.
            limits: what a connection may cost.

        Raises:
            OSError: where the port is taken.
        """
        self._limits = limits
        self._max_connections = tasks + limits.unknown_connections
        _allow_open_files(self._max_connections)
        self._listener = _listen(port, min(self._max_connections, 4096))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._peers: Set[Peer] = set()
        # The deadlines of connections not accepted yet; the first entry has the earliest.
        self._unknown: Dict[Peer, float] = {}
        self._accept_again_at: Optional[float] = None  # while it does not listen
        self._end_events: List[Event] = []
        self.lacks_files = False  # whether connections had to wait for a file descriptor

    @property
    def peers(self) -> List[Peer]:
        """The connections of tasks."""
        return [peer for peer in self._peers if peer.rank is not None]

    def events(self, timeout: Optional[float]) -> Iterator[Event]:
        """Waits at most `timeout` seconds until something happens, and yields what has happened."""
        for key, ready in self._selector.select(self._seconds_to_wait(timeout)):
            if isinstance(key.data, Peer):
                if ready & selectors.EVENT_WRITE:
                    self._flush(key.data)
                if ready & selectors.EVENT_READ:
                    yield from self._read(key.data)
            elif key.fileobj is self._listener:
                self._accept_all()
            else:
                self._woken.recv(_RECEIVE_BYTES)
        now = time.monotonic()
        for peer, deadline in list(self._unknown.items()):
            if deadline > now:
                break
            self.drop(peer)
        if self._accept_again_at is not None and self._accept_again_at <= now:
            self._accept_again_at = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        end_events, self._end_events = self._end_events, []
        yield from end_events

    def accept(self, peer: Peer, rank: int) -> None:
        """Marks a connection as the one of this task."""
        self._unknown.pop(peer, None)
        peer.rank = rank

    def send(self, peer: Peer, message: Message) -> None:
        """Sends a message. Where the connection has ended, an event tells so, and not an error."""
        self._send(peer, encode(message))

    def drop(self, peer: Peer) -> None:
        """Closes a connection, without an event."""
        if peer in self._peers:
            self._peers.discard(peer)
            self._unknown.pop(peer, None)
            self._selector.unregister(peer.socket)
            peer.socket.close()

    def finish(self, message: Message, seconds: float, wait_for_peers: bool = False) -> None:
        """Sends all tasks a last message, and closes every connection.

        It stops listening first: a task that has the message may connect to another server at the
        same port at once.

        Args:
            message: the last message.
            seconds: the most that it may take.
            wait_for_peers: whether to wait until every task has closed its end.
        """
        self._stop_listening()
        for peer in list(self._unknown):
            self.drop(peer)
        data = encode(message)
        sending = self.peers
        for peer in sending:
            self._send(peer, data)
        deadline = time.monotonic() + seconds
        while True:
            for peer in sending:
                if not peer.unsent:
                    self._sent_all(peer, wait_for_peers)
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
        self._stop_listening()
        for peer in list(self._peers):
            self.drop(peer)
        for sock in (self._wake, self._woken):
            sock.close()
        self._selector.close()

    def close_in_child(self) -> None:
        """Closes a forked process's copies of all sockets; the parent's go on."""
        sockets = [peer.socket for peer in list(self._peers)]
        for sock in [*sockets, self._listener, self._wake, self._woken]:
            close_copy(sock)

    def _stop_listening(self) -> None:
        if self._listener.fileno() < 0:
            return
        if self._accept_again_at is None:
            self._selector.unregister(self._listener)
        self._accept_again_at = None
        self._listener.close()

    def _seconds_to_wait(self, timeout: Optional[float]) -> Optional[float]:
        now = time.monotonic()
        times = [next(iter(self._unknown.values()))] if self._unknown else []
        if self._accept_again_at is not None:
            times.append(self._accept_again_at)
        seconds = [max(0.0, when - now) for when in times]
        if timeout is not None:
            seconds.append(max(0.0, timeout))
        return min(seconds, default=None)

    def _accept_all(self) -> None:
        try:
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                find_vanished_peers(sock)
                if len(self._peers) >= self._max_connections:
                    sock.close()
                    continue
                peer = Peer(sock, self._limits.message)
                self._peers.add(peer)
                self._unknown[peer] = time.monotonic() + self._limits.handshake_seconds
                self._selector.register(sock, selectors.EVENT_READ, peer)
        except BlockingIOError:
            pass
        except OSError:  # most likely no file descriptor is left: try again later
            self.lacks_files = True
            self._selector.unregister(self._listener)
            self._accept_again_at = time.monotonic() + _ACCEPT_AGAIN_SECONDS

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
        try:
            for message in peer.decoder.feed(received) if received else ():
                yield Event(peer, message)
                if peer not in self._peers:
                    return
        except WireError:
            received = b""
        if not received:
            self._end(peer, reason)

    def _end(self, peer: Peer, reason: str) -> None:
        self.drop(peer)
        if peer.rank is not None:
            self._end_events.append(Event(peer, None, reason))

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

    def _sent_all(self, peer: Peer, wait_for_peers: bool) -> None:
        if not wait_for_peers:
            self.drop(peer)
            return
        with contextlib.suppress(OSError):
            peer.socket.shutdown(socket.SHUT_WR)


def _listen(port: int, backlog: int) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    listener = socket.create_server(
        ("", port),
        family=socket.AF_INET6 if dual else socket.AF_INET,
        backlog=backlog,
        dualstack_ipv6=dual,
    )
    listener.setblocking(False)
    return listener


def _allow_open_files(count: int) -> None:
    """Raises the limit on file descriptors, usually 1,024: each connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
