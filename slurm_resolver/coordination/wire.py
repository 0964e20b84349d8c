r"""What a task and the coordination service send each other: JSON objects, one on each line.

A connection begins with a mutual handshake, in which the secret itself is never sent::

    service: {"protocol": 1, "challenge": N, "offer": {"means": "munge", "credential": …}}
    task:    {"identity": I, "rank": 3, "number": X, "role": "program", "pid": 71,
              "challenge": M, "proof": HMAC(secret, "task" N M I 3 X "program")}
    service: {"proof": HMAC(secret, "service" N M I 3 X "program"), "grace": 30, "rank": 0}
             or {"refused": "why"}

Both challenges are random, so no proof is valid twice.
"""

from __future__ import annotations

import base64
import hmac
import json
import socket
import zlib
from typing import Any, BinaryIO, Dict, List, NamedTuple, Sequence

Message = Dict[str, Any]

PROTOCOL = 1
# The longest line that a task may send; asyncio buffers at most twice as much for a connection.
MOST_BYTES = 64 * 1024
MOST_ANSWER_BYTES = 64 * 1024 * 1024  # the longest line that the service sends
HANDSHAKE_SECONDS = 5.0

# What the proofs of a handshake cover, beside the service's challenge.
PROVEN = ("challenge", "identity", "rank", "number", "role")

# How a process represents its task: as its program, or as `slurm-resolver exec` that waits for it.
ROLES = ("program", "launcher")


class Process(NamedTuple):
    """A process that represents a task; `role` is one of `ROLES`, and `number` random."""

    rank: int
    role: str
    number: str
    pid: object


class WireError(Exception):
    """What answered is not this package, or not the same version of it."""


def encode(message: Message) -> bytes:
    """Returns a message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Returns the message on a line.

    Raises:
        WireError: where the line is not a JSON object.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError("another program answers there") from error
    if not isinstance(message, dict):
        raise WireError("another program answers there")
    return message


def prove(key: bytes, role: str, *parts: object) -> str:
    """Returns the proof that the sender knows the secret, for one connection."""
    text = "\n".join([role, *map(str, parts)])
    return hmac.new(key, text.encode(errors="backslashreplace"), "sha256").hexdigest()


def is_proof(given: object, key: bytes, role: str, *parts: object) -> bool:
    """Returns whether `given` is the proof for these parts."""
    expected = prove(key, role, *parts).encode()
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="replace"), expected)


def pack(values: Sequence[str]) -> str:
    """Returns JSON texts as one short text: each distinct text once, and its number by rank."""
    numbers: Dict[str, int] = {}
    index = [numbers.setdefault(value, len(numbers)) for value in values]
    text = f"[[{','.join(numbers)}],{json.dumps(index)}]"
    return base64.b64encode(zlib.compress(text.encode(), 1)).decode()


def unpack(packed: str) -> List[Any]:
    """Returns the values that `pack` was given."""
    distinct, index = json.loads(zlib.decompress(base64.b64decode(packed)))
    return [distinct[number] for number in index]


def detect_dead_peers(sock: socket.socket, seconds: float) -> None:
    """Has the kernel end a TCP connection whose other node is silent for `seconds`: tcp(7)."""
    idle, probes = max(1, int(seconds / 3)), 5
    interval = max(1, int((seconds - idle) / probes))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
    # The kernel sends no probes while sent data is unacknowledged; this limit holds then.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def read(lines: BinaryIO, most: int) -> Message:
    """Returns the next message of a connection.

    Raises:
        WireError: where the line is too long or not a message.
        OSError: where the connection has ended.
    """
    line = lines.readline(most)
    if not line:
        raise ConnectionError("it closed the connection")
    if not line.endswith(b"\n"):
        raise WireError("another program answers there")
    return decode(line)
