"""How the two ends of a connection prove to each other that they are of the same step.

As soon as it is connected to, the server sends ``{"challenge": N, "offer": {…}}``; the offer tells
how to come by the secret. The other end sends ``{"identity": I, "challenge": M, "proof": P}`` and
gets ``{"proof": P'}``, where P is ``HMAC(secret, "joins" N M I)`` and P' the same with "serves".
The secret itself is never sent. Both challenges are random, so that no proof can be used again. The
messages that follow are sealed by keys that are made in the same way, so that nobody who has passed
the handshake on between two tasks can say a word of his own.
"""

from __future__ import annotations

import hmac
import secrets
import time
from typing import Callable, Mapping, NamedTuple, Optional, Sequence

from slurm_resolver.rendezvous.wire import Connection, Message, Seal, WireError

Offer = Mapping[str, str]
KeyOf = Callable[[Offer, str], bytes]  # from a server's offer and its name to the secret


class Secret(NamedTuple):
    """What the tasks of a step know and others do not.

    Attributes:
        means: how the tasks come by it, in a word; "" where they have none.
        key: the secret itself; b"" where there is none.
        offer: what the server tells whoever connects, from which tasks of the step get the secret.
    """

    means: str
    key: bytes
    offer: Offer


class Seals(NamedTuple):
    """The seals of a connection: of what the one that joins sends, and of what the server sends."""

    joins: Seal
    serves: Seal

    @classmethod
    def make(cls, key: bytes, parts: Sequence[str]) -> Seals:
        """Returns the seals for the parts that the proofs are made of."""
        return cls(*(Seal(_proof(key, f"sealed {role}", *parts)) for role in ("joins", "serves")))


NO_SECRET = Secret("", b"", {})


class Challenge:
    """The server's side of a handshake."""

    def __init__(self, identity: str, secret: Secret) -> None:
        self._identity, self._secret = identity, secret
        self._number = secrets.token_hex(16)
        self.seals: Optional[Seals] = None  # after a proof that was right

    @property
    def message(self) -> Message:
        """What the server sends first."""
        return {"challenge": self._number, "offer": dict(self._secret.offer)}

    def answer(self, message: Message) -> Optional[Message]:
        """Returns the server's proof for one that has proved itself; None for any other."""
        identity, number, proof = (message.get(key) for key in ("identity", "challenge", "proof"))
        if identity != self._identity or not isinstance(number, str) or not isinstance(proof, str):
            return None
        key, parts = self._secret.key, (self._number, number, self._identity)
        if not hmac.compare_digest(_proof(key, "joins", *parts), _bytes(proof)):
            return None
        self.seals = Seals.make(key, parts)
        return {"proof": _proof(key, "serves", *parts).decode()}


def join(connection: Connection, identity: str, key_of: KeyOf, name: str, deadline: float) -> None:
    """Carries out the other side of a handshake on a new connection.

    Args:
        connection: to the server.
        identity: of what this process wants to join.
        key_of: returns the secret; it may raise an error that says why it cannot.
        name: how messages name the server.
        deadline: on the clock of `time.monotonic`.

    Raises:
        NoAnswerError: where the server says nothing until then.
        ConnectionError: where the server refuses: it is there for another purpose, or this process
            does not know its secret.
        WireError: where what answers is no server of this package, or does not know the secret.
        OSError: where the connection ends.
    """
    challenge = connection.receive(deadline)
    if challenge is None:
        raise _no_answer(deadline)
    number, offer = challenge.get("challenge"), challenge.get("offer")
    if not isinstance(number, str) or not isinstance(offer, dict):
        raise WireError("another program answers there")
    key, own = key_of(offer, name), secrets.token_hex(16)
    parts = (number, own, identity)
    proof = _proof(key, "joins", *parts).decode()
    connection.send({"identity": identity, "challenge": own, "proof": proof})
    answer = connection.receive(deadline)
    if answer is None:
        raise _no_answer(deadline)
    served = _bytes(str(answer.get("proof")))
    if not hmac.compare_digest(_proof(key, "serves", *parts), served):
        raise WireError("what answers there does not know the step's secret")
    if connection.has_messages:
        raise WireError("what answers there says more than it is asked")
    seals = Seals.make(key, parts)
    connection.seal, connection.decoder.seal = seals.joins, seals.serves


class NoAnswerError(ConnectionError):
    """What listens there takes a connection, and sends nothing."""


def _no_answer(deadline: float) -> ConnectionError:
    if time.monotonic() >= deadline:
        return NoAnswerError("it gives no answer")
    return ConnectionError("it closed the connection")


def _proof(key: bytes, role: str, *parts: str) -> bytes:
    text = _bytes("\n".join((role, *parts)))
    return hmac.new(key, text, "sha256").hexdigest().encode()


def _bytes(text: str) -> bytes:
    """Returns the text's bytes; half a surrogate pair, which JSON may hold, is no error."""
    return text.encode(errors="backslashreplace")
