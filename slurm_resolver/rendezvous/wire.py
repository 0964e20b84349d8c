"""The format of what two tasks send each other, and the limits of a connection.

First a greeting, then messages: each is a length of 4 bytes (in network order) and a JSON object.
All connections of this package have this format: the barrier, the monitor of a parameter server
job, and the probe.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

Message = Dict[str, Any]

GREETING = b"slurm_resolver 2\n"
_LENGTH = struct.Struct("!I")
_RECEIVE_BYTES = 64 * 1024
_SKIP_BYTES = 1024 * 1024
_VANISHED_MS = 8000  # without an answer: then the other node is taken for gone


class Limits(NamedTuple):
    """The most that a connection may cost, as any program can connect; tasks need far less.

    Attributes:
        message: bytes of a message that one task sends.
        answer: bytes of the answer that all tasks get.
        handshake_seconds: the time in which a new connection has to say which task it is.
        unknown_connections: how many connections are kept beyond one for each task.
    """

    message: int = 64 * 1024
    answer: int = 64 * 1024 * 1024
    handshake_seconds: float = 5.0
    unknown_connections: int = 256


LIMITS = Limits()


class WireError(ValueError):
    """The bytes that came over a connection were not sent by this package."""


def encode(message: Message) -> bytes:
    """Returns a message as the bytes to send."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Turns the bytes that arrive, however they are cut, into messages."""

    def __init__(self, max_bytes: int, greeting: bool = True) -> None:
        """Takes the most bytes that a message may have, and whether a greeting comes first."""
        self._max_bytes = max_bytes
        self._missing_greeting = GREETING if greeting else b""
        self._data = bytearray()

    def feed(self, received: bytes) -> List[Message]:
        """Returns the messages that are complete with these bytes.

        Raises:
            WireError: where the bytes cannot be the greeting or a message. Messages before these
                bytes are returned first; then the next call raises.
        """
        data = self._data
        data += received
        if self._missing_greeting:
            if not data.startswith(self._missing_greeting[: len(data)]):
                raise WireError("no greeting")
            if len(data) < len(self._missing_greeting):
                return []
            del data[: len(self._missing_greeting)]
            self._missing_greeting = b""
        messages: List[Message] = []
        while len(data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data)
            if length > self._max_bytes:
                if messages:
                    break
                raise WireError(f"a message of {length} bytes")
            end = _LENGTH.size + length
            if len(data) < end:
                break
            messages.append(_decode(bytes(data[_LENGTH.size : end])))
            del data[:end]
        return messages


def _decode(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise WireError("not a JSON object")
    return message


class Connection:
    """One end of a connection, for a thread that waits for each message."""

    def __init__(self, sock: socket.socket, max_bytes: int, greeting: bool) -> None:
        """Takes a connected socket, the most bytes of a message, and whether a greeting comes."""
        self.socket = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = Decoder(max_bytes, greeting)
        self._messages: List[Message] = []

    @classmethod
    def open(cls, address: Tuple[str, int], timeout: float, limits: Limits = LIMITS) -> Connection:
        """Connects to a host and port, and sends the greeting.

        Raises:
            OSError: where there is no connection within `timeout` seconds.
        """
        host, port = address
        sock = socket.create_connection((host.strip("[]"), port), timeout=timeout)
        try:
            connection = cls(sock, limits.answer, greeting=False)
            sock.sendall(GREETING)
        except BaseException:
            sock.close()
            raise
        return connection

    def send(self, message: Message) -> None:
        """Sends a message; raises OSError where the connection has ended."""
        self.socket.sendall(encode(message))

    def receive(self, deadline: Optional[float] = None) -> Optional[Message]:
        """Returns the next message; None if the connection ends or the time is up before it.

        Args:
            deadline: on the clock of `time.monotonic`; None is no deadline.

        Raises:
            WireError: for bytes that are not a message.
        """
        self._messages = self._messages or self._decoder.feed(b"")
        while not self._messages:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return None
            try:
                self.socket.settimeout(remaining)
                received = self.socket.recv(_RECEIVE_BYTES)
            except OSError:
                return None
            if not received:
                return None
            self._messages = self._decoder.feed(received)
        return self._messages.pop(0)

    def skip(self, size: int, deadline: float) -> None:
        """Receives and drops `size` bytes, which the other end sends in place of a message.

        Raises:
            OSError: where they do not all arrive in time.
        """
        while size:
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            received = len(self.socket.recv(min(size, _SKIP_BYTES)))
            if not received:
                raise ConnectionError("it closed the connection")
            size -= received

    def close(self) -> None:
        """Ends the connection."""
        self.socket.close()

    def close_in_child(self) -> None:
        """Closes a forked process's copy of the connection; the parent's goes on."""
        close_copy(self.socket)


def close_copy(sock: socket.socket) -> None:
    """Closes a forked process's copy of a socket, which for its parent stays as it is."""
    with contextlib.suppress(OSError):
        fd = sock.detach()
        if fd >= 0:
            socket.close(fd)


def find_vanished_peers(sock: socket.socket) -> None:
    """Has the kernel end the connection about 10 s after the other node is gone: tcp(7)."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)
    # While sent data is not acknowledged there are no keepalive probes; this is the limit then.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _VANISHED_MS)
