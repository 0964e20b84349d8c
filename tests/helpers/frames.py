"""The wire as its description says it, written anew: what strangers and other versions send."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import struct
from typing import Any, Dict, Optional

GREETING = b"slurm_resolver 3\n"


def frame(value: Any) -> bytes:
    """A message: its length in four bytes, then JSON."""
    body = json.dumps(value).encode()
    return struct.pack("!I", len(body)) + body


def read_frame(connection: socket.socket) -> Any:
    """The next message; None at the end of the connection."""
    body = read_body(connection)
    return None if body is None else json.loads(body)


def read_body(connection: socket.socket) -> Optional[bytes]:
    try:
        length = connection.recv(4, socket.MSG_WAITALL)
        if len(length) < 4:
            return None
        return connection.recv(struct.unpack("!I", length)[0], socket.MSG_WAITALL)
    except ConnectionResetError:
        return None


class Link:
    """A connection to a server, over which the handshake is carried out."""

    def __init__(self, connection: socket.socket, identity: str, key: bytes = b"") -> None:
        self.connection = connection
        connection.sendall(GREETING)
        self._parts = (read_frame(connection)["challenge"], "own", identity)
        self._key = key
        self._counts = {"joins": 0, "serves": 0}
        proof = self._digest("joins")
        connection.sendall(frame({"identity": identity, "challenge": "own", "proof": proof}))
        self.answer = read_frame(connection)  # None where it is refused

    def say(self, value: Any) -> None:
        body = json.dumps(value).encode()
        body = self._mark("joins", body) + body
        self.connection.sendall(struct.pack("!I", len(body)) + body)

    def hear(self) -> Optional[Any]:
        """The next message; None at the end of the connection."""
        body = read_body(self.connection)
        if body is None:
            return None
        assert body[:16] == self._mark("serves", body[16:])
        return json.loads(body[16:])

    def _digest(self, role: str) -> str:
        text = "\n".join((role, *self._parts)).encode()
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()

    def _mark(self, role: str, body: bytes) -> bytes:
        self._counts[role] += 1
        key = self._digest(f"sealed {role}").encode()
        text = struct.pack("!Q", self._counts[role]) + body
        return hmac.new(key, text, hashlib.sha256).digest()[:16]


def visit(rank: Any, note: Any, number: str = "first", seconds: Any = 60) -> Dict[str, Any]:
    """The message by which a task comes to a meeting."""
    return {"rank": rank, "visit": number, "seconds": seconds, "note": note}
