"""Whether a task can listen at its port, and whether the others reach it there."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Callable

from slurm_resolver.coordination.tcp import connect_to, listen_at

_CONNECT_SECONDS = 5.0


@contextmanager
def listening(address: str, answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """Answers each connection to the address, in a thread; yields why it cannot listen, or ''."""
    port = int(address.rpartition(":")[2])
    try:
        server = listen_at(port, backlog=512)
    except OSError as error:
        yield f"port {port}: {os.strerror(error.errno or 0)}{_find_listener(port)}"
        return

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, suppress(OSError):
                    connection.settimeout(_CONNECT_SECONDS)
                    answer(connection)

    Thread(target=accept, daemon=True).start()
    try:
        yield ""
    finally:
        # close() alone would not wake the thread that waits in accept()
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()


def _find_listener(port: int) -> str:
    """Returns which process listens at a port; '' if ss(8) is missing or cannot tell this user."""
    try:
        done = subprocess.run(
            ["ss", "-Hltnp", f"sport = :{port}"], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r'"([^"]*)",pid=(\d+)', done.stdout)
    if match is None:
        return ""
    own = match[2] == str(os.getpid())
    return ", by this process itself" if own else f", by process {match[2]} ({match[1]})"


def call(address: str) -> socket.socket:
    """Returns a connection to an address; what takes longer than some seconds there fails.

    TensorFlow, too, tries the first address of a name first.
    """
    host, _, port = address.rpartition(":")
    first = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0][4][0]
    return connect_to(str(first), int(port), _CONNECT_SECONDS)


def tell_rank(rank: int) -> Callable[[socket.socket], object]:
    """Returns the answer that `ask_rank` expects."""
    return lambda connection: connection.sendall(b"%d\n" % rank)


def answers(address: str) -> bool:
    """Whether a process listens at an address."""
    with suppress(OSError), call(address):
        return True
    return False


def ask_rank(address: str, rank: int) -> None:
    """Raises OSError unless the task of this rank answers at this address."""
    with call(address) as sock:
        answer = sock.makefile("rb").readline(100).strip()
    if answer != b"%d" % rank:
        raise OSError(f"another process answers there: {answer!r}")
