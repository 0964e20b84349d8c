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
import contextlib
import hmac
import json
import os
import secrets
import socket
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Callable, NamedTuple

from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.coordination.secret import accept_offer

Message = dict[str, Any]
TextByRank = dict[int, str]
# Sends a message to the processes of some ranks, or of all ranks for None.
Send = Callable[[Any, Message], None]

PROTOCOL = 1
# The longest line that a task may send, and the longest of a handshake; asyncio buffers at most
# twice as much for a connection.
MOST_BYTES = 64 * 1024
_MOST_ANSWER_BYTES = 64 * 1024 * 1024  # the longest line that the service sends later
HANDSHAKE_SECONDS = 5.0
# What the proofs of a handshake cover, beside the service's challenge.
PROVEN = ("challenge", "identity", "rank", "number", "role")


class Process(NamedTuple):
    """A process that represents a task: its "program", or `exec`, the "launcher" of that.

    `slurm-resolver status` is an "observer", with the rank 0.
    """

    rank: int
    role: str
    number: str  # random
    pid: int


class WireError(Exception):
    """What answers is not this package, or another version of it, or belongs to another step."""


def encode(message: Message) -> bytes:
    """Returns a message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Returns the message on a line; raises WireError if that is not a JSON object."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise WireError("another program answers there")
    return message


def prove(key: bytes, role: str, *parts: object) -> str:
    """Returns the proof that the sender knows the secret, for one connection."""
    text = "\n".join([role, *map(str, parts)])
    return hmac.new(key, text.encode(errors="backslashreplace"), "sha256").hexdigest()


def is_proof(given: object, key: bytes, role: str, *parts: object) -> bool:
    """Returns whether `given` is the proof for these parts."""
    return hmac.compare_digest(
        str(given).encode(errors="replace"), prove(key, role, *parts).encode()
    )


def pack(values: Sequence[str]) -> str:
    """Returns JSON texts as one short text: each distinct text once, and its number by rank."""
    numbers: dict[str, int] = {}
    index = [numbers.setdefault(value, len(numbers)) for value in values]
    text = f"[[{','.join(numbers)}],{json.dumps(index)}]"
    return base64.b64encode(zlib.compress(text.encode(), 1)).decode()


def unpack(packed: str) -> list[Any]:
    """Returns the values that `pack` was given."""
    distinct, index = json.loads(zlib.decompress(base64.b64decode(packed)))
    return [distinct[number] for number in index]


def detect_dead_peers(sock: socket.socket, seconds: float) -> None:
    """Lets the kernel end a TCP connection whose other node is silent for `seconds`: tcp(7)."""
    interval = max(1, int(seconds / 6))
    options = {
        socket.TCP_KEEPIDLE: interval,
        socket.TCP_KEEPINTVL: interval,
        socket.TCP_USER_TIMEOUT: int(seconds * 1000),
        socket.TCP_NODELAY: 1,
    }
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in options.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def outlast_outages(port: int, seconds: float) -> None:
    """Lets the kernel keep the TCP connections at a port of this process for `seconds` of silence.

    A server of gRPC ends them after 20 s, and TensorFlow has no option for that.
    """
    milliseconds = int(seconds * 1000)
    for path in filter(Path.is_socket, Path("/proc/self/fd").iterdir()):
        # Another thread may close it.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as sock:
            if sock.getsockname()[1:2] == (port,):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def read(lines: BinaryIO) -> Message:
    """Returns the next message; raises WireError if it is too long, OSError at the end."""
    line = lines.readline(_MOST_ANSWER_BYTES)
    if not line:
        raise ConnectionError("it closed the connection")
    return decode(line if line.endswith(b"\n") else b"")


def connect_to(host: str, port: int, seconds: float) -> socket.socket:
    """Connects as `socket.create_connection`; its error has the address that was tried first."""
    tried = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    try:
        return socket.create_connection((host, port), seconds)
    except OSError as error:
        raise type(error)(
            f"{error} at {tried}; if Slurm has another address (scontrol show node), pass "
            "node_address='slurm'"
        ) from None


def open_connection(
    address: ServiceAddress, hello: Message
) -> tuple[socket.socket, BinaryIO, Message]:
    """Returns a connection, its lines, and the service's answer to the handshake.

    Raises OSError, WireError or RendezvousError if the service does not answer as expected, which
    takes `HANDSHAKE_SECONDS` at most.
    """
    until = time.monotonic() + HANDSHAKE_SECONDS
    host = "127.0.0.1" if address.serves else address.host.strip("[]")
    sock = connect_to(host, address.port, HANDSHAKE_SECONDS)
    try:
        greeting = _receive(sock, until)
        offer = greeting.get("offer")
        if greeting.get("protocol") != PROTOCOL or not isinstance(offer, dict):
            raise WireError("another program or another version of slurm_resolver answers there")
        key = accept_offer(offer, address.name)
        hello = {**hello, "identity": address.identity, "challenge": secrets.token_hex(16)}
        parts = [greeting.get("challenge"), *(hello[name] for name in PROVEN)]
        sock.sendall(encode({**hello, "proof": prove(key, "task", *parts)}))
        answer = _receive(sock, until)
        if "other" in answer:
            raise WireError(f"a service answers there, but {answer['other']}")
        if not is_proof(answer.get("proof"), key, "service", *parts):
            raise WireError("what answers there does not know the step's secret")
        sock.settimeout(HANDSHAKE_SECONDS)
        return sock, sock.makefile("rb"), answer
    except BaseException:
        sock.close()
        raise


def _receive(sock: socket.socket, until: float) -> Message:
    """Returns the next message, and reads nothing beyond it.

    Raises TimeoutError if it has not come by then, however its bytes come.
    """
    line = b""
    while not line.endswith(b"\n"):
        sock.settimeout(max(until - time.monotonic(), 0.001))
        byte = sock.recv(1)
        if not byte:
            raise ConnectionError("it closed the connection")
        line += byte
    return decode(line)
