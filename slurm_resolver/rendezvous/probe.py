"""What a task can find out about its port and the other tasks over TCP, without TensorFlow.

A task asks another one by ``{"ask": "rank"}``, and gets its rank and clock; or by ``{"ask": "take",
"bytes": N}``, and sends N bytes as soon as the other one has answered that it awaits them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

from slurm_resolver.rendezvous.sockets import listen_at_port
from slurm_resolver.rendezvous.wire import LIMITS, Connection, Limits, WireError

_MAX_BYTES = 64 * 2**20
_BLOCK_BYTES = 2**20
_CONNECT_SECONDS = 5.0
_TRANSFER_SECONDS = 30.0


class RankReply(NamedTuple):
    """What an address answered when it was asked for its rank.

    Attributes:
        problem: why the expected rank did not answer; None where it did.
        seconds: the round-trip time.
        clock_ahead: by how many seconds the clock there is ahead of the clock here.
        own_address: the address of this node from which it was asked: that of the interface that
            leads there.
    """

    problem: Optional[str]
    seconds: float = 0.0
    clock_ahead: float = 0.0
    own_address: str = ""


class Listener:
    """Listens at a task's own port, and answers with its rank."""

    def __init__(self, rank: int, port: int, limits: Limits = LIMITS) -> None:
        """Listens from now on; `problem` says why it cannot, or is None."""
        self.problem: Optional[str] = None
        self._rank = rank
        self._limits = limits
        self._free_connections = threading.BoundedSemaphore(limits.unknown_connections)
        self._socket: Optional[socket.socket] = None
        try:
            # With SO_REUSEADDR, as TensorFlow's server: a port that is being closed can be used.
            self._socket = listen_at_port(port, 512)
        except OSError as error:
            process = process_listening_at(port)
            reason = os.strerror(error.errno or 0) + (f", by {process}" if process else "")
            self.problem = f"port {port}: {reason}"
            return
        threading.Thread(target=self._accept, args=(self._socket,), daemon=True).start()

    def close(self) -> None:
        """Stops listening, which frees the port."""
        if self._socket is not None:
            # close() alone would not wake the thread that waits in accept()
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                if self._free_connections.acquire(blocking=False):
                    threading.Thread(target=self._serve, args=(sock,), daemon=True).start()
                else:
                    sock.close()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock, contextlib.suppress(OSError, WireError):
                self._answer(Connection(sock, self._limits.message, greeting=True))
        finally:
            self._free_connections.release()

    def _answer(self, connection: Connection) -> None:
        asked = connection.receive(time.monotonic() + self._limits.handshake_seconds)
        if asked is None or asked.get("ask") not in ("rank", "take"):
            return
        size = asked.get("bytes", 0)
        if not isinstance(size, int) or not 0 <= size <= _MAX_BYTES:
            return
        if asked["ask"] == "take":
            connection.send({"awaited": size})
            connection.skip(size, time.monotonic() + _TRANSFER_SECONDS)
        connection.send({"rank": self._rank, "clock": time.time()})


def ask_rank(address: str, rank: int) -> RankReply:
    """Asks the task at an address for its rank, which is expected to be `rank`."""
    try:
        connection = Connection.open(_split(address), _CONNECT_SECONDS)
        try:
            # Another program may listen there, which never answers: do not wait for long.
            own_address = str(connection.socket.getsockname()[0])
            sent_at, started = time.time(), time.perf_counter()
            connection.send({"ask": "rank"})
            answer = connection.receive(time.monotonic() + _CONNECT_SECONDS)
            seconds = time.perf_counter() - started
        finally:
            connection.close()
        if answer is None:
            return RankReply("it gave no answer")
        answered_rank, clock = answer["rank"], float(answer["clock"])
    except (OSError, WireError, KeyError, TypeError) as error:
        return RankReply(str(error) or type(error).__name__)
    if answered_rank != rank:
        return RankReply(f"rank {answered_rank} answers there")
    return RankReply(None, seconds, clock - (sent_at + seconds / 2), own_address)


def measure_bandwidth(
    address: str, size: int, seconds: float = _TRANSFER_SECONDS
) -> Optional[float]:
    """Sends `size` bytes to the task at an address, and returns the bytes per second.

    None where it does not take them in `seconds`.
    """
    try:
        connection = Connection.open(_split(address), _CONNECT_SECONDS)
        try:
            connection.send({"ask": "take", "bytes": size})
            if connection.receive(time.monotonic() + _CONNECT_SECONDS) is None:
                return None
            connection.socket.settimeout(seconds)
            block = bytes(_BLOCK_BYTES)
            started = time.perf_counter()
            for offset in range(0, size, len(block)):
                connection.socket.sendall(block[: size - offset])
            answer = connection.receive(time.monotonic() + seconds)
            taken = time.perf_counter() - started
        finally:
            connection.close()
    except (OSError, WireError):
        return None
    return size / taken if answer is not None else None


def _split(address: str) -> Tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def unresolved_hosts(hosts: List[str], seconds: float = 20.0) -> Dict[str, str]:
    """Returns the hosts whose names do not resolve on this node, with the reason.

    After `seconds` it stops, and the remaining hosts count as resolved.
    """
    failed = {}
    deadline = time.monotonic() + seconds
    for host in hosts:
        if time.monotonic() > deadline:
            break  # each name takes seconds where the name server does not answer
        try:
            socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        except OSError as error:
            failed[host] = str(error)
    return failed


def process_listening_at(port: int) -> Optional[str]:
    """Returns which process listens at a port of this node; None if this user cannot see it."""
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


def ranks_to_ask(rank: int, tasks: int, max_tasks: int = 64) -> List[int]:
    """Returns the other ranks that this one asks: all up to `max_tasks` tasks, else a sample.

    The sample is the ranks at the distances 1, 2, 4, …: each task asks, and is asked by, near and
    far ones, and few such distances lead from any task to any other.
    """
    if tasks <= max_tasks:
        return [other for other in range(tasks) if other != rank]
    distances = []
    distance = 1
    while distance < tasks:
        distances.append(distance)
        distance *= 2
    return [(rank + distance) % tasks for distance in distances]
