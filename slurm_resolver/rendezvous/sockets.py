"""The sockets at which tasks meet: over TCP, and within a node by a name that its kernel knows."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import socket
import struct
import sys
from typing import Tuple

VANISHED_SECONDS = 8.0  # without an answer: then the other node is taken for gone
_OTHER_FILES = 1024  # file descriptors for everything else that the process has open


def listen_at_port(port: int, backlog: int) -> socket.socket:
    """Listens on all IPv4 and IPv6 addresses of this node; raises OSError if the port is taken."""
    dual = socket.has_dualstack_ipv6()
    return socket.create_server(
        ("", port),
        family=socket.AF_INET6 if dual else socket.AF_INET,
        backlog=backlog,
        dualstack_ipv6=dual,
    )


def node_name(*parts: object) -> str:
    """Returns a name in Linux's abstract namespace: it needs no file, and so leaves none."""
    text = " ".join(map(str, (os.getuid(), *parts)))
    return f"\0slurm_resolver {hashlib.sha256(text.encode()).hexdigest()[:32]}"


def listen_at_name(name: str, backlog: int, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Listens at a name on this node; raises OSError if another process does."""
    listener = socket.socket(socket.AF_UNIX, kind)
    try:
        listener.bind(name)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def connect_to_name(name: str, timeout: float, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Connects to a process of this user on this node.

    Raises:
        OSError: where no process of this user listens at the name.
    """
    sock = socket.socket(socket.AF_UNIX, kind)
    try:
        sock.settimeout(timeout)
        sock.connect(name)
        if not is_of_this_user(sock):
            raise PermissionError("a process of another user listens there")
    except BaseException:
        sock.close()
        raise
    return sock


def is_of_this_user(sock: socket.socket) -> bool:
    """Returns whether the process at the other end of a connection within the node is ours."""
    return _credentials(sock)[1] == os.getuid()


def is_of_this_process(sock: socket.socket) -> bool:
    """Returns whether this process itself has made the connection within the node."""
    return _credentials(sock)[0] == os.getpid()


def _credentials(sock: socket.socket) -> Tuple[int, int, int]:
    """Returns the process, user and group that have made a connection: unix(7)."""
    size = struct.calcsize("3i")
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, gid = struct.unpack("3i", found)
    return pid, uid, gid


def close_copy(sock: socket.socket) -> None:
    """Closes a forked process's copy of a socket, which for its parent stays as it is."""
    with contextlib.suppress(OSError):
        fd = sock.detach()
        if fd >= 0:
            socket.close(fd)


def find_vanished_peers(sock: socket.socket, seconds: float = VANISHED_SECONDS) -> None:
    """Has the kernel end a TCP connection after this long without an answer: tcp(7)."""
    idle, probes = max(1, int(seconds * 3 / 8)), 5
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    sock.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int((seconds - idle) / probes))
    )
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
    # While sent data is not acknowledged there are no keepalive probes; this is the limit then.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def allow_open_files(count: int) -> int:
    """Raises the limit on file descriptors, usually 1,024: each connection needs one.

    Returns:
        The limit that holds from now on; `sys.maxsize` where there is none.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
