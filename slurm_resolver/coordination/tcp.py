"""TCP as the tasks use it: how to listen and connect, and when a silent node is lost."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path


def listen_at(port: int, backlog: int | None = None) -> socket.socket:
    """Returns a socket that listens at a port of this node, for IPv4 and IPv6 if it has both.

    Raises OSError if another process listens there.
    """
    dual = socket.has_dualstack_ipv6()
    return socket.create_server(
        ("", port),
        family=socket.AF_INET6 if dual else socket.AF_INET,
        backlog=backlog,
        dualstack_ipv6=dual,
    )


def connect_to(host: str, port: int, seconds: float, only_first: bool = False) -> socket.socket:
    """Connects as `socket.create_connection`, but if wanted to the first address of a name only.

    `seconds` are those of an attempt; the look-up of the name comes before, and may take longer.
    The error has the address that was tried first.
    """
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise type(error)(f"{error} at {host}") from None
    errors = []
    for *_, address in found[:1] if only_first else found:
        try:
            return socket.create_connection((str(address[0]), port), seconds)
        except OSError as error:
            errors.append(type(error)(f"{error} at {address[0]}"))
    raise errors[0]


def detect_dead_peers(sock: socket.socket, grace: float) -> None:
    """Lets the kernel end a TCP connection whose other node is silent for the grace: tcp(7).

    It does so a little before, so that `silence` does not say that only the process is silent.
    """
    seconds = 0.9 * grace
    interval = max(1, int(seconds / 12))
    options = {
        socket.TCP_KEEPIDLE: interval,
        socket.TCP_KEEPINTVL: interval,
        socket.TCP_USER_TIMEOUT: int(seconds * 1000),
        socket.TCP_NODELAY: 1,
    }
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in options.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def why_ended(error: Exception, grace: float) -> str:
    """Returns why a connection has ended with an error; after `detect_dead_peers`."""
    if isinstance(error, EOFError) or type(error) is ConnectionError:  # see `wire.Connection`
        return "its process has ended"
    if isinstance(error, ConnectionError):
        return "its connection was reset: its process was killed, or a firewall has cut it"
    return f"its node has not answered for {grace:g} s"


def outlast_outages(port: int, seconds: float) -> None:
    """Lets the kernel keep the TCP connections at a port of this process for `seconds` of silence.

    A server of gRPC ends them after 20 s, and TensorFlow has no option for that.
    """
    for number in sockets_at(port):
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def sockets_at(port: int) -> list[int]:
    """Returns the file descriptors of this process's sockets that have this port at one end."""
    found = []
    for path in filter(Path.is_socket, Path("/proc/self/fd").iterdir()):
        # Another thread may close it.
        with suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as sock:
            ends = [sock.getsockname()]
            with suppress(OSError):  # it listens
                ends.append(sock.getpeername())
            if any(end[1:2] == (port,) for end in ends):
                found.append(int(path.name))
    return found
