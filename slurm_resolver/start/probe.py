"""Whether a task can listen at its port, and whether the others reach it there."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Callable

from slurm_resolver.cluster.addresses import Task
from slurm_resolver.coordination.tcp import connect_to, listen_at

Answer = Callable[[socket.socket], object]

_CONNECT_SECONDS = 5.0


@contextmanager
def listening(task: Task, answer: Answer | None = None) -> Iterator[str]:
    """Answers each connection to this task's port, in a thread; yields why it cannot, or ''.

    `answer` writes to the connection; by default what `ask_rank` of another task expects.
    """
    port = int(task.address.rpartition(":")[2])
    respond = answer or (lambda connection: connection.sendall(b"%d\n" % task.rank))
    try:
        server = listen_at(port, backlog=512)
    except OSError as error:
        yield f"port {port}: {os.strerror(error.errno or 0)} (ss -ltnp shows by what)"
        return

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, suppress(OSError):
                    connection.settimeout(_CONNECT_SECONDS)
                    respond(connection)

    Thread(target=accept, daemon=True).start()
    try:
        yield ""
    finally:
        # close() alone would not wake the thread that waits in accept()
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()


def call(address: str, remedy: str = "") -> socket.socket:
    """Returns a connection to an address; what takes longer than some seconds there fails.

    TensorFlow, too, tries the first address of a name first. `remedy` is for the error.
    """
    host, _, port = address.rpartition(":")
    return connect_to(host, int(port), _CONNECT_SECONDS, remedy, only_first=True)


def answers(address: str) -> bool:
    """Whether a process listens at an address."""
    with suppress(OSError), call(address):
        return True
    return False


def ask_rank(task: Task, remedy: str) -> None:
    """Raises OSError unless this task answers at its address, with its rank."""
    with call(task.address, remedy) as sock:
        answer = sock.makefile("rb").readline(100).strip()
    if answer != b"%d" % task.rank:
        raise OSError(f"another process answers there: {answer!r}")
