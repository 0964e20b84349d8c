"""What one task can find out about its port and its peers by plain TCP."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

_WHO = b"w"
_TAKE = b"t"
_REPLY = struct.Struct("!qd")  # rank and clock of who answers
_SIZE = struct.Struct("!Q")
_LARGEST = 64 * 2**20
_CONNECT_SECONDS = 5.0


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

    def __init__(self, rank: int, port: int) -> None:
        """Takes the port; `problem` says why it could not, or is None."""
        self.problem: Optional[str] = None
        self._rank = rank
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
                connection, _ = listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, struct.error):
            connection.settimeout(30)
            command = connection.recv(1)
            if command == _TAKE:
                (left,) = _SIZE.unpack(_read(connection, _SIZE.size))
                while 0 < left <= _LARGEST:
                    left -= len(connection.recv(min(left, 2**20))) or left
            if command in (_WHO, _TAKE):
                connection.sendall(_REPLY.pack(self._rank, time.time()))


def ask(address: str, rank: int) -> Peer:
    """Asks an address who is there, and whether it is this rank."""
    try:
        with _connect(address) as connection:
            connection.settimeout(_CONNECT_SECONDS)  # what listens there may be something else
            started = time.time()
            begun = time.perf_counter()
            connection.sendall(_WHO)
            there, clock = _REPLY.unpack(_read(connection, _REPLY.size))
            seconds = time.perf_counter() - begun
    except (OSError, struct.error) as error:
        return Peer(str(error) or type(error).__name__)
    if there != rank:
        return Peer(f"rank {there} answers there")
    return Peer(None, seconds, clock - (started + seconds / 2))


def send(address: str, size: int) -> Optional[float]:
    """Returns the bytes a second at which a peer takes `size` bytes; None where it does not."""
    try:
        with _connect(address) as connection:
            begun = time.perf_counter()
            connection.sendall(_TAKE + _SIZE.pack(size))
            block = bytes(2**20)
            for offset in range(0, size, len(block)):
                connection.sendall(block[: size - offset])
            _read(connection, _REPLY.size)
            return size / (time.perf_counter() - begun)
    except OSError:
        return None


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(30)
    return connection


def _read(connection: socket.socket, size: int) -> bytes:
    body = b""
    while len(body) < size:
        piece = connection.recv(size - len(body))
        if not piece:
            raise ConnectionError("it closed the connection")
        body += piece
    return body


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
