"""TCP as the tasks use it: how to listen and connect, and when a silent node is lost."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from socket import AF_INET, AF_INET6, IPPROTO_TCP, SO_KEEPALIVE, SOCK_STREAM, SOL_SOCKET

# by host and port: the address that has answered
_reached: dict[tuple[str, int], list[str]] = {}


def listen_at(port: int) -> socket.socket:
    """Returns a socket that listens at a port of this node, for IPv4 and IPv6 if it has both.

    Raises OSError if another process listens there.
    """
    dual = socket.has_dualstack_ipv6()
    return socket.create_server(
        ("", port),
        family=AF_INET6 if dual else AF_INET,
        backlog=512,
        dualstack_ipv6=dual,
    )


def connect_to(host: str, port: int, seconds: float, only_first: bool = False) -> socket.socket:
    """Connects as `socket.create_connection`, but if wanted to the first address of a name only.

    `seconds` are those of an attempt; the look-up of the name comes before, and may take longer. It
    is not repeated after a success, as a task that reconnects has little time. The error has the
    address that was tried first.
    """
    host = host.strip("[]")
    try:
        addresses = _reached.get((host, port)) or [
            str(address[0]) for *_, address in socket.getaddrinfo(host, port, type=SOCK_STREAM)
        ]
    except (OSError, UnicodeError) as error:  # the latter if a part of the name is empty or long
        raise OSError(f"{error} at {host}") from None
    errors = []
    for address in addresses[:1] if only_first else addresses:
        try:
            connection = socket.create_connection((address, port), seconds)
        except OSError as error:
            errors.append(type(error)(f"{error} at {address}"))
        else:
            _reached[host, port] = [address]
            return connection
    raise errors[0]


def detect_dead_peers(sock: socket.socket, seconds: float) -> None:
    """Lets the kernel end a TCP connection whose other node is silent for `seconds`: tcp(7)."""
    interval = max(1, int(seconds / 6))
    options = {
        socket.TCP_KEEPIDLE: interval,
        socket.TCP_KEEPINTVL: interval,
        socket.TCP_USER_TIMEOUT: int(seconds * 1000),
        socket.TCP_NODELAY: 1,
    }
    sock.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
    for option, value in options.items():
        sock.setsockopt(IPPROTO_TCP, option, value)


def outlast_outages(port: int, seconds: float) -> None:
    """Lets the kernel keep the TCP connections at a port of this process for `seconds` of silence.

    A server of gRPC ends them after 20 s, and TensorFlow has no option for that.
    """
    for _, sock in sockets_at(port):
        with suppress(OSError):
            sock.setsockopt(IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def sockets_at(port: int) -> Iterator[tuple[int, socket.socket]]:
    """Yields the sockets of this process that have this port at one end.

    Of each, it yields the file descriptor, and a copy that lasts until the next one.
    """
    for path in filter(Path.is_socket, Path("/proc/self/fd").iterdir()):
        number = int(path.name)
        # Another thread may close it.
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as sock:
            ends = [sock.getsockname()]
            with suppress(OSError):  # it listens
                ends.append(sock.getpeername())
            if any(end[1:2] == (port,) for end in ends):
                yield number, sock
