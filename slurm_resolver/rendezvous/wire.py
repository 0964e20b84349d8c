"""What goes over a connection between two tasks, and what a connection may cost.

A greeting, then messages: each a length of 4 bytes (in network order), and a JSON object. All of
this package's connections are of this form: the barrier at which tasks meet, those that watch a
parameter server job, and the probe of a preflight.
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
_PIECE = 64 * 1024
_SKIPPED_AT_ONCE = 1024 * 1024


class Limits(NamedTuple):
    """What strangers on the network cannot exceed; tasks keep within it by far.

    Attributes:
        message: bytes of a message from one task.
        answer: bytes of the answer that all tasks get.
        handshake_seconds: a task introduces itself at once; who is silent for longer is none.
        strangers: connections, beyond one for each task, that are kept at a time.
    """

    message: int = 64 * 1024
    answer: int = 64 * 1024 * 1024
    handshake_seconds: float = 5.0
    strangers: int = 256


LIMITS = Limits()


class WireError(ValueError):
    """What came over a connection is nothing that this package has sent."""


def encode(message: Message) -> bytes:
    """Returns a message as it goes over the wire."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Puts messages together from the pieces in which they arrive."""

    def __init__(self, longest: int, greeting: bool = True) -> None:
        """Takes the most bytes that a message may have, and whether a greeting comes first."""
        self._longest = longest
        self._greeting = GREETING if greeting else b""
        self._data = bytearray()

    def feed(self, piece: bytes) -> List[Message]:
        """Returns the messages that this piece completes.

        Raises:
            WireError: as soon as it is clear that there is no such message.
        """
        data = self._data
        data += piece
        if self._greeting:
            if not data.startswith(self._greeting[: len(data)]):
                raise WireError("no greeting")
            if len(data) < len(self._greeting):
                return []
            del data[: len(self._greeting)]
            self._greeting = b""
        messages = []
        while len(data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data)
            if length > self._longest:
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
        raise WireError(f"no JSON: {error}") from error
    if not isinstance(message, dict):
        raise WireError("no JSON object")
    return message


class Connection:
    """One end of a connection, for a thread that waits for what the other end has to say."""

    def __init__(self, link: socket.socket, longest: int, greeting: bool) -> None:
        """Takes a connected socket, the longest message, and whether the other end greets."""
        self.socket = link
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = Decoder(longest, greeting)
        self._received: List[Message] = []

    @classmethod
    def open(cls, address: Tuple[str, int], timeout: float, limits: Limits = LIMITS) -> Connection:
        """Connects to a host and port, and greets.

        Raises:
            OSError: where nobody takes the connection within `timeout` seconds.
        """
        host, port = address
        link = socket.create_connection((host.strip("[]"), port), timeout=timeout)
        try:
            connection = cls(link, limits.answer, greeting=False)
            link.sendall(GREETING)
        except BaseException:
            link.close()
            raise
        return connection

    def send(self, message: Message) -> None:
        """Sends a message; OSError where the connection has ended."""
        self.socket.sendall(encode(message))

    def receive(self, deadline: Optional[float] = None) -> Optional[Message]:
        """Returns the next message; None where the connection ends, or the time is up, before.

        Args:
            deadline: by `time.monotonic`; None waits for as long as it takes.

        Raises:
            WireError: for what is no message.
        """
        while not self._received:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return None
            try:
                self.socket.settimeout(remaining)
                piece = self.socket.recv(_PIECE)
            except OSError:
                return None
            if not piece:
                return None
            self._received = self._decoder.feed(piece)
        return self._received.pop(0)

    def skip(self, size: int, deadline: float) -> None:
        """Takes `size` bytes that are no message, which the other end was asked for just now.

        Raises:
            OSError: where they do not all come in time.
        """
        while size:
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            taken = len(self.socket.recv(min(size, _SKIPPED_AT_ONCE)))
            if not taken:
                raise ConnectionError("it closed the connection")
            size -= taken

    def close(self) -> None:
        """Ends the connection."""
        self.socket.close()

    def close_in_child(self) -> None:
        """Lets go of the connection in a forked process, without ending it for the parent."""
        with contextlib.suppress(OSError):
            fd = self.socket.detach()
            if fd >= 0:
                socket.close(fd)


def find_vanished_peers(link: socket.socket) -> None:
    """Lets the kernel find out within about 10 s that the other node is gone: tcp(7)."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)
    # also while something sent is not acknowledged, when there are no probes
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _VANISHED_MS)


_VANISHED_MS = 8000
