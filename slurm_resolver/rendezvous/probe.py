"""What one task can find out about its port and its peers by plain TCP.

Who asks sends ``{"ask": "rank"}``, and is told the rank and the clock of who is there; or ``{"ask":
"take", "bytes": N}``, and sends as many bytes once it is told that they are awaited.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

from slurm_resolver.rendezvous.wire import LIMITS, Connection, Limits, WireError

_MOST_BYTES = 64 * 2**20
_BLOCK = 2**20
_CONNECT_SECONDS = 5.0
_TRANSFER_SECONDS = 30.0


class Peer(NamedTuple):
    """What came of asking one address who is there.

    `problem` is None where the right rank answered; then `seconds` is the round-trip time, and
    `clock` by how much the peer's clock is ahead of this one's.
    """

    problem: Optional[str]
    seconds: float = 0.0
    clock: float = 0.0


class Listener:
    """Listens at a task's own port, and tells who asks which rank it is."""

    def __init__(self, rank: int, port: int, limits: Limits = LIMITS) -> None:
        """Takes the port; `problem` says why it could not, or is None."""
        self.problem: Optional[str] = None
        self._rank = rank
        self._limits = limits
        self._places = threading.BoundedSemaphore(limits.strangers)
        self._socket: Optional[socket.socket] = None
        try:
            # as TensorFlow's server does, which takes over a port that is only being closed
            self._socket = socket.create_server(("", port), backlog=512)
        except OSError as error:
            holder = holder_of(port)
            reason = os.strerror(error.errno or 0) + (f", by {holder}" if holder else "")
            self.problem = f"port {port}: {reason}"
            return
        threading.Thread(target=self._accept, args=(self._socket,), daemon=True).start()

    def close(self) -> None:
        """Gives the port back."""
        if self._socket is not None:
            # closing alone does not wake the thread that waits for a connection
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = listener.accept()
                if self._places.acquire(blocking=False):
                    threading.Thread(target=self._serve, args=(link,), daemon=True).start()
                else:
                    link.close()

    def _serve(self, link: socket.socket) -> None:
        try:
            with link, contextlib.suppress(OSError, WireError):
                self._answer(Connection(link, self._limits.message, greeting=True))
        finally:
            self._places.release()

    def _answer(self, connection: Connection) -> None:
        asked = connection.receive(time.monotonic() + self._limits.handshake_seconds)
        if asked is None or asked.get("ask") not in ("rank", "take"):
            return
        size = asked.get("bytes", 0)
        if not isinstance(size, int) or not 0 <= size <= _MOST_BYTES:
            return
        if asked["ask"] == "take":
            connection.send({"awaited": size})
            connection.skip(size, time.monotonic() + _TRANSFER_SECONDS)
        connection.send({"rank": self._rank, "clock": time.time()})


def ask(address: str, rank: int) -> Peer:
    """Asks an address who is there, and whether it is this rank."""
    try:
        connection = Connection.open(_split(address), _CONNECT_SECONDS)
        try:
            # what listens there may be something else, which never answers
            started, begun = time.time(), time.perf_counter()
            connection.send({"ask": "rank"})
            answer = connection.receive(time.monotonic() + _CONNECT_SECONDS)
            seconds = time.perf_counter() - begun
        finally:
            connection.close()
        if answer is None:
            return Peer("it gave no answer")
        there, clock = answer["rank"], float(answer["clock"])
    except (OSError, WireError, KeyError, TypeError) as error:
        return Peer(str(error) or type(error).__name__)
    if there != rank:
        return Peer(f"rank {there} answers there")
    return Peer(None, seconds, clock - (started + seconds / 2))


def send(address: str, size: int) -> Optional[float]:
    """Returns the bytes a second at which a peer takes `size` bytes; None where it does not."""
    try:
        connection = Connection.open(_split(address), _CONNECT_SECONDS)
        try:
            connection.send({"ask": "take", "bytes": size})
            if connection.receive(time.monotonic() + _CONNECT_SECONDS) is None:
                return None
            connection.socket.settimeout(_TRANSFER_SECONDS)
            block = bytes(_BLOCK)
            begun = time.perf_counter()
            for offset in range(0, size, len(block)):
                connection.socket.sendall(block[: size - offset])
            answer = connection.receive(time.monotonic() + _TRANSFER_SECONDS)
            seconds = time.perf_counter() - begun
        finally:
            connection.close()
    except (OSError, WireError):
        return None
    return size / seconds if answer is not None else None


def _split(address: str) -> Tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def unresolved(hosts: List[str], seconds: float = 20.0) -> Dict[str, str]:
    """Returns the hosts whose names do not resolve here, with the reason."""
    failed = {}
    deadline = time.monotonic() + seconds
    for host in hosts:
        if time.monotonic() > deadline:
            break  # a name server that does not answer takes seconds a name
        try:
            socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        except OSError as error:
            failed[host] = str(error)
    return failed


def holder_of(port: int) -> Optional[str]:
    """Returns which process listens at a port of this node, as far as this user may see it."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                listening = fields[3] == "0A"
                if listening and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                if str(descriptor.readlink()) in inodes:
                    name = (process / "comm").read_text().strip()
                    return f"process {process.name} ({name})"
    return None


def peers_to_ask(rank: int, tasks: int, most: int = 64) -> List[int]:
    """Returns the ranks that this one asks: all others, or a sample that covers the step.

    Of a larger step each asks ranks at distances 1, 2, 4, …: every task is asked by as many as it
    asks, near and far, and any two are joined by few steps.
    """
    if tasks <= most:
        return [other for other in range(tasks) if other != rank]
    distances = []
    distance = 1
    while distance < tasks:
        distances.append(distance)
        distance *= 2
    return [(rank + distance) % tasks for distance in distances]
