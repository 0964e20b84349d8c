r"""What a task and the coordination service send each other: JSON objects, one on each line.

A connection begins with a mutual handshake, in which the secret itself is never sent::

    service: {"protocol": 1, "challenge": N, "offer": {"means": "munge", "credential": …}}
    task:    {"identity": I, "rank": 3, "number": X, "role": "program", "pid": 71,
              "challenge": M, "proof": HMAC(secret, "task" N and all of the above)}
    service: {"proof": HMAC(secret, "service" N and the same), "rank": 0, "service": its name}
             and what an observer asks for

Instead of the last message, the service may say {"refused": "why"}, or {"other": true} to a task of
another step. One that cannot start greets with {"protocol": 1, "identity": I, "refused": "why"},
and the task answers with its rank and role.

Both challenges are random, so no proof is valid twice. After the handshake, the first key says what
a message is. A task sends:

| keys | meaning |
|---|---|
| gather, value | the task's value for a gather: `rounds` |
| … without, timeout, seconds | it also waits for the answer; "seconds" are left |
| told, value | something for all tasks, also for those that connect later |
| training, leader, cluster, serves | its part in a training with servers: `training_with_servers` |
| … seconds | the leader and the servers have to come in this time |
| progress, task, limit | what the worker does: `progress` |
| pong | its answer to a ping: `silence` |
| goodbye | it leaves; with the reason if it has failed, else '' |

The service sends:

| keys | meaning |
|---|---|
| gathered, values or error | the answer to a gather |
| awaited, rank, value | a task waits for this gather without a deadline |
| told, value, rank | what another task tells all |
| over | how the training has ended; null if it has not |
| stall, behind | no step ends: a line for the log, and ranks that are behind |
| ping | asks for a pong, and names the service's process: `silence` |
| silent | a process does not answer, or answers again: a line for the log |
| gone, why | the task with this rank is lost, or has failed |
| left | the tasks with these ranks have left |
| closing | the service ends once the task has closed its end of the connection |
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Iterable
from json import dumps, loads
from secrets import token_hex
from select import POLLIN, poll
from socket import SHUT_WR, socket
from time import monotonic
from typing import Any, Callable, NamedTuple
from zlib import compress, decompress

from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.coordination.secret import RefusedError, accept_offer
from slurm_resolver.coordination.tcp import connect_to

Message = dict[str, Any]
TextByRank = dict[int, str]
# Sends a message to the processes of some ranks, or of all ranks for None.
Send = Callable[[Any, Message], None]

PROTOCOL = 1
# The longest line that a task may send, and the longest of a handshake; asyncio buffers at most
# twice as much for a connection.
MOST_BYTES = 64 * 1024
_MOST_ANSWER_BYTES = 64 * 1024 * 1024  # the longest line that the service sends
HANDSHAKE_SECONDS = 5.0
NO_ANSWER = "accepts connections, but does not answer: it is stopped, or hangs in C code"


class Process(NamedTuple):
    """A process that represents a task: its "program", or before that `exec`, the "launcher".

    `slurm-resolver status` is an "observer", with the rank 0.
    """

    rank: int
    role: str
    number: str  # random
    pid: int


class Gather(NamedTuple):
    """Which gather it is: the first one for a purpose is round 1, the next one round 2."""

    purpose: str
    round: int


def encode(message: Message) -> bytes:
    """Returns a message as a line."""
    return dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Returns the message on a line; raises ConnectionError if that is not a JSON object."""
    try:
        message = loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise ConnectionError("another program answers there")
    return message


def prove(key: bytes, role: str, challenge: object, hello: Message) -> str:
    """Returns the proof that the "task" or the "service" knows the secret, for one connection.

    Args:
        challenge: the service's challenge.
        hello: what the task has sent, but for its own proof.
    """
    text = dumps([role, challenge, hello], sort_keys=True)
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def is_proof(proof: object, *proven: Any) -> bool:
    """Returns whether `proof` is what `prove` returns."""
    return hmac.compare_digest(str(proof).encode(errors="replace"), prove(*proven).encode())


def pack(values: Iterable[str]) -> str:
    """Returns JSON texts as one short text: each distinct text once, and its number by rank."""
    numbers: dict[str, int] = {}
    index = [numbers.setdefault(value, len(numbers)) for value in values]
    text = f"[[{','.join(numbers)}],{dumps(index)}]"
    return b64encode(compress(text.encode(), 1)).decode()


def unpack(packed: str) -> list[Any]:
    """Returns the values that `pack` was given."""
    distinct, index = loads(decompress(b64decode(packed)))
    return [distinct[number] for number in index]


class Connection:
    """A task's end of a connection, which sends and receives messages."""

    def __init__(self, sock: socket) -> None:
        self.socket = sock
        self._arrival = poll()
        self._arrival.register(sock, POLLIN)
        # what has come of the next message, and perhaps beyond it
        self._pieces = [b""]

    def send(self, message: Message) -> None:
        """Sends a message; raises OSError if the connection has failed."""
        self.socket.sendall(encode(message))

    def finish(self) -> None:
        """Says that no message follows; the other end can still send."""
        self.socket.shutdown(SHUT_WR)

    def receive(self, until: float = 0.0) -> Message:
        """Returns the next message; raises ConnectionError at the end of the connection.

        Raises TimeoutError if it has not come whole by then, however its bytes come.
        """
        if not self.has_message(until):
            raise TimeoutError("it never ends its line" if any(self._pieces) else NO_ANSWER)
        line, _, rest = b"".join(self._pieces).partition(b"\n")
        self._pieces = [rest]
        return decode(line)

    def has_message(self, until: float) -> bool:
        """Waits until the next message has come whole, or until then; returns whether it has."""
        while b"\n" not in self._pieces[-1]:
            if not self._arrival.poll(1000 * max(until - monotonic(), 0.001)):
                return False
            self._pieces.append(self.socket.recv(MOST_BYTES))
            if not self._pieces[-1]:
                raise ConnectionError("it closed the connection")
            if sum(map(len, self._pieces)) > _MOST_ANSWER_BYTES:
                raise ConnectionError("another program answers there")
        return True


def open_connection(address: ServiceAddress, process: Process) -> tuple[Connection, Message]:
    """Returns a connection, and the service's answer to the handshake.

    Raises OSError or RendezvousError if no service of this step answers as expected. Connecting and
    the handshake take `HANDSHAKE_SECONDS` each at most; looking up the name may take longer.
    """
    host = "127.0.0.1" if address.hosts_service else address.host
    try:
        return _shake(connect_to(host, address.port, HANDSHAKE_SECONDS), address, process)
    except OSError as error:
        # Only the network raises these; what was received raises ConnectionError itself.
        if address.hosts_service or type(error) is ConnectionError:
            raise
        raise type(error)(f"{error}{address.remedy}") from None


def _shake(sock: socket, address: ServiceAddress, process: Process) -> tuple[Connection, Message]:
    """Does a task's part of the handshake; the socket is closed if that fails."""
    until = monotonic() + HANDSHAKE_SECONDS
    connection = Connection(sock)
    try:
        greeting = connection.receive(until)
        if greeting.get("identity") == address.identity:
            connection.send(process._asdict())
            _end_if_refused(greeting, address)
        offer = greeting.get("offer")
        if greeting.get("protocol") != PROTOCOL or not isinstance(offer, dict):
            raise ConnectionError(
                "another program or another version of slurm_resolver answers there"
            )
        key = accept_offer(offer, address.name)  # which may take long
        until = monotonic() + HANDSHAKE_SECONDS
        hello = {
            **process._asdict(),
            "identity": address.identity,
            "challenge": token_hex(16),
        }
        challenge = greeting.get("challenge")
        connection.send({**hello, "proof": prove(key, "task", challenge, hello)})
        answer = connection.receive(until)
        _end_if_refused(answer, address)
        if "other" in answer:
            raise ConnectionError(
                "a service answers there, but it belongs to another step, or another start"
            )
        if not is_proof(answer.get("proof"), key, "service", challenge, hello):
            raise ConnectionError(
                "what answers there does not know the step's secret, SLURM_RESOLVER_SECRET or munge"
            )
        sock.settimeout(None)
        return connection, answer
    except BaseException:
        sock.close()
        raise


def _end_if_refused(message: Message, address: ServiceAddress) -> None:
    if "refused" in message:
        raise RefusedError(f"{address.name} refuses this process: {message['refused']}.")
