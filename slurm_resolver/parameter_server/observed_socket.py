"""Sockets that know afterwards how their connection ended: closed at the other end, or lost.

However a process ends, its kernel closes its connections. A connection that was reset, as by a
firewall that has forgotten it, or that ended as nothing answered, says nothing about the process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import socket
import struct
import termios
from typing import Any, Tuple

_TCP_CLOSE = 7  # from linux/tcp_states.h: no close of the other end has arrived
_NO_END = (None, errno.EAGAIN, errno.EINTR)  # None: the time that Python waits for it is up
_CLOSED = (errno.EPIPE,)  # closed there, and then reset
_SILENT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)


class ObservedSocket(socket.socket):
    """A connected socket over TCP.

    Attributes:
        lost: whether the connection has ended without being closed at the other end.
        silent: whether that was because nothing had answered for as long as
            `find_vanished_peers` was told.
    """

    lost = False
    silent = False

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Receives as any socket does, and takes notice of the end."""
        try:
            received = super().recv(size, flags)
        except OSError as error:
            if error.errno not in _NO_END:
                self.lost = error.errno not in _CLOSED
                self.silent = error.errno in _SILENT
            raise
        if not received:
            # Where a send has already got the error, recv tells an ordinary end.
            self.lost = _state(self) == _TCP_CLOSE
        return received

    def abandon(self) -> None:
        """Closes it in a way that does not look like the end of this process."""
        with contextlib.suppress(OSError):
            reset = struct.pack("ii", 1, 0)
            self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        self.close()


class ObservingListener(socket.socket):
    """A listening socket whose connections are `ObservedSocket`s."""

    def accept(self) -> Tuple[ObservedSocket, Any]:
        """Accepts as any socket does."""
        accepted, address = super().accept()
        return ObservedSocket(fileno=accepted.detach()), address


def connect(address: Tuple[str, int], timeout: float) -> ObservedSocket:
    """Connects to a host and port; raises OSError where that takes more than `timeout` seconds."""
    host, port = address
    sock = socket.create_connection((host.strip("[]"), port), timeout)
    observed = ObservedSocket(fileno=sock.detach())
    observed.settimeout(timeout)
    return observed


def has_arrived(sock: socket.socket) -> bool:
    """Returns whether the other end's kernel has all that was sent over a connection."""
    try:
        # TIOCOUTQ is what Linux calls SIOCOUTQ on a socket: tcp(7).
        unacknowledged = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
        return not any(unacknowledged) and _state(sock) != _TCP_CLOSE
    except (OSError, ValueError):  # closed here
        return False


def _state(sock: socket.socket) -> int:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
