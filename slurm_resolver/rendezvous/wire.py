"""The format of what two tasks send each other, and the limits of a connection.

First a greeting, then messages: each is a length of 4 bytes (in network order) and a JSON object.
After a handshake 16 bytes stand before each object, by which the other end knows who has sent it.
All connections of this package have this format: the barrier, the monitor of a parameter server
job, and the probe.
"""

from __future__ import annotations

import hmac
import json
import socket
import struct
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from slurm_resolver.rendezvous.sockets import close_copy

Message = Dict[str, Any]

GREETING = b"slurm_resolver 3\n"
_LENGTH = struct.Struct("!I")
_RECEIVE_BYTES = 64 * 1024
_SKIP_BYTES = 1024 * 1024
_MARK_BYTES = 16


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


class Seal:
    """Marks the messages of one direction, so that nobody else can add, change or repeat one."""

    def __init__(self, key: bytes) -> None:
        """Takes a key that only the two ends have, for this direction of this connection."""
        self._key = key
        self._count = 0

    def mark(self, body: bytes) -> bytes:
        """Returns the mark of the next message."""
        self._count += 1
        text = self._count.to_bytes(8, "big") + body
        return hmac.digest(self._key, text, "sha256")[:_MARK_BYTES]


def encode(message: Message, seal: Optional[Seal] = None) -> bytes:
    """Returns a message as the bytes to send."""
    return frame(to_json(message), seal)


def to_json(message: Message) -> bytes:
    """Returns a message as JSON, for `frame`."""
    return json.dumps(message, separators=(",", ":")).encode()


def frame(body: bytes, seal: Optional[Seal] = None) -> bytes:
    """Returns a message's JSON as the bytes to send."""
    mark = seal.mark(body) if seal is not None else b""
    return b"".join((_LENGTH.pack(len(mark) + len(body)), mark, body))


class Decoder:
    """Turns the bytes that arrive, however they are cut, into messages."""

    def __init__(self, max_bytes: int, greeting: bool = True) -> None:
        """Takes the most bytes that a message may have, and whether a greeting comes first."""
        self.max_bytes = max_bytes
        self.seal: Optional[Seal] = None  # of the messages from now on
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
            if length > self.max_bytes:
                if messages:
                    break
                raise WireError(f"a message of {length} bytes")
            end = _LENGTH.size + length
            if len(data) < end:
                break
            body = bytes(data[_LENGTH.size : end])
            del data[:end]
            messages.append(_decode(self._opened(body)))
        return messages

    def _opened(self, body: bytes) -> bytes:
        if self.seal is None:
            return body
        mark, body = body[:_MARK_BYTES], body[_MARK_BYTES:]
        if not hmac.compare_digest(mark, self.seal.mark(body)):
            raise WireError("a message that somebody else has sent or changed")
        return body


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
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.decoder = Decoder(max_bytes, greeting)
        self.seal: Optional[Seal] = None  # of the messages that are sent from now on
        self._messages: List[Message] = []

    @property
    def has_messages(self) -> bool:
        """Whether messages have come that `receive` has not yet returned."""
        return bool(self._messages)

    @classmethod
    def open(cls, address: Tuple[str, int], timeout: float, limits: Limits = LIMITS) -> Connection:
        """Connects to a host and port, and sends the greeting.

        Raises:
            OSError: where there is no connection within `timeout` seconds.
        """
        host, port = address
        return cls.greet(socket.create_connection((host.strip("[]"), port), timeout), limits)

    @classmethod
    def greet(cls, sock: socket.socket, limits: Limits = LIMITS) -> Connection:
        """Returns the connection of a connected socket, over which it sends the greeting."""
        try:
            connection = cls(sock, limits.answer, greeting=False)
            sock.sendall(GREETING)
        except BaseException:
            sock.close()
            raise
        return connection

    def send(self, message: Message) -> None:
        """Sends a message; raises OSError where the connection has ended."""
        self.socket.sendall(encode(message, self.seal))

    def receive(self, deadline: Optional[float] = None) -> Optional[Message]:
        """Returns the next message; None if the connection ends or the time is up before it.

        Args:
            deadline: on the clock of `time.monotonic`; None is no deadline.

        Raises:
            WireError: for bytes that are not a message.
        """
        self._messages = self._messages or self.decoder.feed(b"")
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
            self._messages = self.decoder.feed(received)
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
