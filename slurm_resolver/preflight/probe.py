"""Whether a task can listen at its port, and whether the others reach it there.

A task that listens sends each connection one line: its rank and its clock.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

from slurm_resolver.coordination.wire import MOST_BYTES, WireError, encode, read

_CONNECT_SECONDS = 5.0


class RankReply(NamedTuple):
    """What an address answered when it was asked for its rank.

    Attributes:
        problem: why the expected rank did not answer; None where it did.
        clock_ahead: by how many seconds the clock there is ahead of the clock here.
    """

    problem: Optional[str]
    clock_ahead: float = 0.0


class Listener:
    """Listens at a task's own port; `problem` says why it cannot, or is None."""

    def __init__(self, rank: int, port: int) -> None:
        """Listens from now on."""
        self.problem: Optional[str] = None
        self._rank = rank
        self._socket: Optional[socket.socket] = None
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        try:
            self._socket = socket.create_server(
                ("", port), family=family, backlog=512, dualstack_ipv6=dual
            )
        except OSError as error:
            process = process_listening_at(port)
            reason = os.strerror(error.errno or 0) + (f", by {process}" if process else "")
            self.problem = f"port {port}: {reason}"
            return
        threading.Thread(target=self._answer, args=(self._socket,), daemon=True).start()

    def close(self) -> None:
        """Stops listening, which frees the port."""
        if self._socket is not None:
            # close() alone would not wake the thread that waits in accept()
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _answer(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.sendall(encode({"rank": self._rank, "clock": time.time()}))


def ask_rank(address: str, rank: int) -> RankReply:
    """Asks the task at an address for its rank, which is expected to be `rank`."""
    host, _, port = address.rpartition(":")
    sent_at, started = time.time(), time.perf_counter()
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS) as sock:
            answer = read(sock.makefile("rb"), MOST_BYTES)
        seconds = time.perf_counter() - started
        answered_rank, clock = answer["rank"], float(answer["clock"])
    except (OSError, WireError, KeyError, TypeError) as error:
        return RankReply(str(error) or type(error).__name__)
    if answered_rank != rank:
        return RankReply(f"rank {answered_rank} answers there")
    return RankReply(None, clock - (sent_at + seconds / 2))


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

    The sample is the ranks at the distances 1, 2, 4, …: few such distances lead from any task to
    any other.
    """
    if tasks <= max_tasks:
        return [other for other in range(tasks) if other != rank]
    distances = [1 << power for power in range((tasks - 1).bit_length())]
    return [(rank + distance) % tasks for distance in distances]
