r"""What a task and the coordination service send each other: JSON objects, one on each line.

A connection begins with a mutual handshake, in which the secret itself is never sent::

    service: {"protocol": 2, "identity": I, "challenge": N,
              "offer": {"key": its name, "credential": munge's}}
    task:    {"rank": 3, "process": "71 X", "challenge": M,
              "proof": HMAC(secret, "task" N and all of the above)}
    service: {"proof": HMAC(secret, "service" N and the same), "rank": 0, "service": its name}
             and what an observer asks for

The task names its process by the id and a random number. An observer has the rank -1.
A service that cannot start greets with {"protocol": 2, "identity": I, "refused": "why"}, and the
task answers with {"rank": 3}, so that the service ends once all tasks know. Instead of the last
message, the service may say {"refused": "why"}, or {"later": "why"}: the task tries again.
All messages of the service up to here have its protocol and identity.

Both challenges are random, so no proof is valid twice. After the handshake, the first key says what
a message is. A task sends:

| keys | meaning |
|---|---|
| gather, value | the task's value for a gather: `rounds` |
| … without, patient | it also waits for the answer |
| gather, late | its time to wait is up |
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
| awaited, value | a task waits for this gather without a deadline |
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
from contextlib import suppress
from json import dumps, loads
from secrets import token_hex
from select import POLLIN, poll
from socket import SHUT_WR, socket
from time import monotonic
from typing import Any, NamedTuple
from zlib import compress, decompress

from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.coordination.secret import RefusedError, accept_offer
from slurm_resolver.coordination.tcp import connect_to

Message = dict[str, Any]

PROTOCOL = 2
# The longest line that a task may send, and the longest of a handshake; asyncio buffers at most
# twice as much for a connection.
MOST_BYTES = 64 * 1024
_MOST_ANSWER_BYTES = 64 * 1024 * 1024  # the longest line that the service sends
HANDSHAKE_SECONDS = 5.0
NO_ANSWER = "accepts connections, but does not answer: it is stopped, or hangs in C code"
_STRANGER = "another program or another version of slurm_resolver answers there"


class Gather(NamedTuple):
    """Which gather it is: the first one for a purpose is round 1, the next one round 2."""

    purpose: str
    round: int


def encode(message: Message) -> bytes:
    """Returns a message as a line."""
    return dumps(message, separators=(",", ":")).encode() + b"\n"


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
        self.received = b""

    def send(self, message: Message) -> None:
        """Sends a message; raises OSError if the connection has failed."""
        self.socket.sendall(encode(message))

    def finish(self) -> None:
        """Says that no message follows; the other end can still send."""
        self.socket.shutdown(SHUT_WR)

    def receive(self, until: float) -> Message | None:
        """Returns the next message; None if it has not come whole by then.

        Raises ConnectionError at the end of the connection, and ValueError for another program's
        answer.
        """
        while b"\n" not in self.received:
            if not self._arrival.poll(1000 * max(until - monotonic(), 0.001)):
                return None
            piece = self.socket.recv(MOST_BYTES)
            if not piece:
                raise ConnectionError("it closed the connection")
            self.received += piece
            if len(self.received) > _MOST_ANSWER_BYTES:
                raise ConnectionError(_STRANGER)
        line, _, self.received = self.received.partition(b"\n")
        message: Message = loads(line)
        return message


def open_connection(address: ServiceAddress, process: str) -> tuple[Connection, Message]:
    """Returns a connection of a process, and the service's answer to the handshake.

    Raises OSError or RendezvousError if no service of this step answers as expected. Connecting and
    each answer take `HANDSHAKE_SECONDS` at most; looking up the name may take longer.
    """
    host = "127.0.0.1" if address.hosts_service else address.host
    try:
        sock = connect_to(host, address.port, HANDSHAKE_SECONDS)
        try:
            return _shake(Connection(sock), address, process)
        except BaseException:
            sock.close()
            raise
    except (KeyError, TypeError, ValueError, RecursionError):  # by what a stranger sends
        raise ConnectionError(_STRANGER) from None
    except OSError as error:
        # Only the network raises these; what was received raises ConnectionError itself.
        if address.hosts_service or type(error) is ConnectionError:
            raise
        raise type(error)(f"{error}{address.remedy}") from None


def _shake(
    connection: Connection, address: ServiceAddress, process: str
) -> tuple[Connection, Message]:
    """Does a task's part of the handshake."""
    greeting = _expect(connection, address)
    key = accept_offer(greeting["offer"])  # which may take long
    hello = {"rank": address.rank, "process": process, "challenge": token_hex(16)}
    proven = (greeting["challenge"], hello)
    connection.send({**hello, "proof": prove(key, "task", *proven)})
    answer = _expect(connection, address)
    if not is_proof(answer["proof"], key, "service", *proven):
        raise ConnectionError(
            "what answers there does not know the step's secret, SLURM_RESOLVER_SECRET or munge"
        )
    connection.socket.settimeout(None)
    return connection, answer


def _expect(connection: Connection, address: ServiceAddress) -> Message:
    """Returns the next message of this step's service in the handshake."""
    message = connection.receive(monotonic() + HANDSHAKE_SECONDS)
    if message is None and not connection.received:
        raise TimeoutError(NO_ANSWER)
    if message is None or message["protocol"] != PROTOCOL:
        raise ConnectionError(_STRANGER)
    if message["identity"] != address.identity:
        raise ConnectionError(
            "a service answers there, but it belongs to another step, or another start"
        )
    if "refused" in message:
        with suppress(OSError):
            connection.send({"rank": address.rank})
        raise RefusedError(f"{address.name} refuses this process: {message['refused']}.")
    if "later" in message:
        raise ConnectionError(message["later"])
    return message
