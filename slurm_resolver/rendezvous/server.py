"""The end to which all tasks of a step connect: one thread, a socket for each, and no strangers."""

from __future__ import annotations

import contextlib
import os
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
    encode,
    find_vanished_peers,
)

_PIECE = 64 * 1024
_ACCEPT_AGAIN_SECONDS = 0.2
_SPARE_FILES = 1024  # for all else that the process has open


class Peer:
    """A connection to one task, or to a stranger as long as `rank` is None."""

    def __init__(self, link: socket.socket, longest: int) -> None:
        self.socket = link
        self.rank: Optional[int] = None
        self.decoder = Decoder(longest)
        self.unsent = bytearray()


class Event(NamedTuple):
    """What a peer did: a message, or (`message` is None) the end of its connection.

    `reason` says why it ended, where that is more than that the process is gone.
    """

    peer: Peer
    message: Optional[Message]
    reason: str = ""


class Server:
    """Listens at a port of this node, on all its addresses, IPv6 ones included.

    A connection starts as a stranger's: it ends unless `accept` is called for it within the
    handshake's seconds. Nothing here blocks but `events`.
    """

    def __init__(self, port: int, tasks: int, limits: Limits = LIMITS) -> None:
        """Listens from now on.

        Args:
            port: where.
            tasks: how many tasks may be connected at a time.
            limits: what strangers cannot exceed.

        Raises:
            OSError: where the port is taken.
        """
        self._limits = limits
        self._most = tasks + limits.strangers
        _allow_files(self._most)
        self._listener = _listen(port, min(self._most, 4096))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._peers: Set[Peer] = set()
        # All handshakes last equally long: the first entry is the first that is due.
        self._strangers: Dict[Peer, float] = {}
        self._accepts_from: Optional[float] = None
        self._ended: List[Event] = []

    @property
    def peers(self) -> List[Peer]:
        """The tasks that are connected."""
        return [peer for peer in self._peers if peer.rank is not None]

    def events(self, timeout: Optional[float]) -> Iterator[Event]:
        """Waits until something happens, at most `timeout` seconds, and yields what did."""
        for key, ready in self._selector.select(self._pause(timeout)):
            if isinstance(key.data, Peer):
                if ready & selectors.EVENT_WRITE:
                    self._flush(key.data)
                if ready & selectors.EVENT_READ:
                    yield from self._read(key.data)
            elif key.fileobj is self._listener:
                self._accept_all()
        now = time.monotonic()
        for peer, deadline in list(self._strangers.items()):
            if deadline > now:
                break
            self.drop(peer)
        if self._accepts_from is not None and self._accepts_from <= now:
            self._accepts_from = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        ended, self._ended = self._ended, []
        yield from ended

    def accept(self, peer: Peer, rank: int) -> None:
        """Takes a stranger for the task that it says to be."""
        self._strangers.pop(peer, None)
        peer.rank = rank

    def send(self, peer: Peer, message: Message) -> None:
        """Sends a message; the end of a connection is an event, and no error here."""
        self._send(peer, encode(message))

    def drop(self, peer: Peer) -> None:
        """Ends a connection, which then makes no event."""
        if peer in self._peers:
            self._peers.discard(peer)
            self._strangers.pop(peer, None)
            self._selector.unregister(peer.socket)
            peer.socket.close()

    def finish(self, message: Message, seconds: float, until_heard: bool = False) -> None:
        """Sends all tasks their last message, and ends every connection.

        The port is free at once: who has this message may go on to another server there.

        Args:
            message: the last one.
            seconds: what it may take.
            until_heard: whether to wait until every task has ended its side.
        """
        self._stop_listening()
        for peer in list(self._strangers):
            self.drop(peer)
        data = encode(message)
        for peer in self.peers:
            self._send(peer, data)
            if not peer.unsent:
                self._sent_all(peer, until_heard)
        deadline = time.monotonic() + seconds
        while self._peers and time.monotonic() < deadline:
            for _ in self.events(deadline - time.monotonic()):
                pass  # nobody listens any more
            for peer in self.peers:
                if not peer.unsent:
                    self._sent_all(peer, until_heard)
        self.close()

    def wake(self) -> None:
        """Lets `events` return at once, from another thread."""
        with contextlib.suppress(OSError):
            self._wake.send(b"w")

    def close(self) -> None:
        """Ends all connections, and gives the port back."""
        self._stop_listening()
        for peer in list(self._peers):
            self.drop(peer)
        for link in (self._wake, self._woken):
            link.close()
        self._selector.close()

    def close_in_child(self) -> None:
        """Lets go of everything in a forked process, without ending it for the parent."""
        links = [peer.socket for peer in list(self._peers)]
        for link in [*links, self._listener, self._wake, self._woken]:
            with contextlib.suppress(OSError):
                fd = link.detach()
                if fd >= 0:
                    os.close(fd)

    def _stop_listening(self) -> None:
        if self._listener.fileno() < 0:
            return
        if self._accepts_from is None:
            self._selector.unregister(self._listener)
        self._accepts_from = None
        self._listener.close()

    def _pause(self, timeout: Optional[float]) -> Optional[float]:
        now = time.monotonic()
        times = [next(iter(self._strangers.values()))] if self._strangers else []
        if self._accepts_from is not None:
            times.append(self._accepts_from)
        pauses = [max(0.0, when - now) for when in times]
        if timeout is not None:
            pauses.append(max(0.0, timeout))
        return min(pauses, default=None)

    def _accept_all(self) -> None:
        try:
            while True:
                link, _ = self._listener.accept()
                link.setblocking(False)
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                find_vanished_peers(link)
                if len(self._peers) >= self._most:
                    link.close()
                    continue
                peer = Peer(link, self._limits.message)
                self._peers.add(peer)
                self._strangers[peer] = time.monotonic() + self._limits.handshake_seconds
                self._selector.register(link, selectors.EVENT_READ, peer)
        except BlockingIOError:
            pass
        except OSError:  # no more file descriptors, most likely: look again later
            self._selector.unregister(self._listener)
            self._accepts_from = time.monotonic() + _ACCEPT_AGAIN_SECONDS

    def _read(self, peer: Peer) -> Iterator[Event]:
        if peer not in self._peers:
            return
        reason = ""
        try:
            piece = peer.socket.recv(_PIECE)
        except BlockingIOError:
            return
        except ConnectionResetError:
            piece = b""
        except OSError as error:
            piece, reason = b"", f"its node does not answer any more ({error.strerror})"
        try:
            for message in peer.decoder.feed(piece) if piece else ():
                yield Event(peer, message)
                if peer not in self._peers:
                    return
        except WireError:
            piece = b""
        if not piece:
            self._end(peer, reason)

    def _end(self, peer: Peer, reason: str) -> None:
        self.drop(peer)
        if peer.rank is not None:
            self._ended.append(Event(peer, None, reason))

    def _send(self, peer: Peer, data: bytes) -> None:
        if peer in self._peers:
            peer.unsent += data
            self._flush(peer)

    def _flush(self, peer: Peer) -> None:
        if peer not in self._peers:
            return
        try:
            while peer.unsent:
                del peer.unsent[: peer.socket.send(peer.unsent[:_PIECE])]
        except BlockingIOError:
            pass
        except OSError:
            peer.unsent.clear()  # its end shows when it is read from
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        if self._selector.get_key(peer.socket).events != wanted:
            self._selector.modify(peer.socket, wanted, peer)

    def _sent_all(self, peer: Peer, until_heard: bool) -> None:
        if not until_heard:
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


def _allow_files(count: int) -> None:
    """A file descriptor for each connection: the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _SPARE_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
