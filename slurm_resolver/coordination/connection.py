"""Opens connections to a coordination service: of a task, or of an observer such as `status`."""

from __future__ import annotations

import secrets
import socket
from typing import BinaryIO, Callable, Tuple

from slurm_resolver.coordination import ServiceAddress, wire
from slurm_resolver.coordination.secret import accept_offer
from slurm_resolver.coordination.wire import Message

_CONNECT_SECONDS = 5.0


def open_connection(
    address: ServiceAddress, hello: Message
) -> Tuple[socket.socket, BinaryIO, Message]:
    """Returns a connection, what it reads lines from, and the service's answer to the handshake."""
    host = "127.0.0.1" if address.serves else address.host.strip("[]")
    sock = socket.create_connection((host, address.port), _CONNECT_SECONDS)
    try:
        lines = sock.makefile("rb")
        greeting = wire.read(lines, wire.MOST_BYTES)
        offer = greeting.get("offer")
        if greeting.get("protocol") != wire.PROTOCOL or not isinstance(offer, dict):
            raise wire.WireError(
                "another program or another version of slurm_resolver answers there"
            )
        key = accept_offer(offer, address.name)
        hello = {**hello, "identity": address.identity, "challenge": secrets.token_hex(16)}
        parts = [greeting.get("challenge"), *(hello[name] for name in wire.PROVEN)]
        proof = wire.prove(key, "task", *parts)
        sock.sendall(wire.encode({**hello, "proof": proof}))
        answer = wire.read(lines, wire.MOST_BYTES)
        if "other" in answer:
            raise wire.WireError(f"a service answers there, but {answer['other']}")
        if not wire.is_proof(answer.get("proof"), key, "service", *parts):
            raise wire.WireError("what answers there does not know the step's secret")
        return sock, lines, answer
    except BaseException:
        sock.close()
        raise


def observe(address: ServiceAddress) -> Callable[[], Message]:
    """Returns a function that asks the service of another step for its status.

    Raises:
        OSError, WireError, RendezvousError: where that service does not answer, or refuses.
    """
    hello = {"rank": None, "role": "observer", "number": secrets.token_hex(8)}
    sock, lines, answer = open_connection(address, hello)
    if "refused" in answer:
        raise wire.WireError(str(answer["refused"]))

    def ask() -> Message:
        sock.sendall(wire.encode({}))
        return wire.read(lines, wire.MOST_ANSWER_BYTES)

    return ask
