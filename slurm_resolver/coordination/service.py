"""The coordination service of a step: a thread of one task, to which every task connects.

It admits processes (`wire`), answers their gathers (`rounds`), and passes on what they report and
how they end to `training_with_servers`, and to `progress`, which watches all trainings.

| a connection ends | the process |
|---|---|
| after a goodbye | has left |
| without one, as the process closed it | is lost, unless it returns within 2 s |
| without one, as it was reset | is lost, unless it returns within half of the grace |
| without one, as its node is silent | is lost, unless it returns within the grace |

A process that keeps its connection, but does not answer, is lost as well: see `silence`.

A service that cannot serve, for example because it may not open enough files, tells each task why.
Its process ends only once all tasks know: they would wait for it.

At its end, the service asks each task to close its end of the connection, so that the task has all
messages. It waits for them for the grace.
"""

from __future__ import annotations

import asyncio
import os
from asyncio import StreamReader, StreamWriter, get_running_loop, sleep
from collections.abc import Container
from dataclasses import dataclass
from math import inf
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from secrets import token_hex
from socket import SO_SNDBUF, SOL_SOCKET
from threading import Thread
from time import monotonic
from typing import NoReturn

from slurm_resolver.coordination import NameOf, ServiceAddress
from slurm_resolver.coordination.progress import Monitor
from slurm_resolver.coordination.rounds import Rounds
from slurm_resolver.coordination.secret import REMEDY, Secret
from slurm_resolver.coordination.silence import Silence, describe, why_lost
from slurm_resolver.coordination.tcp import detect_dead_peers, listen_at
from slurm_resolver.coordination.training_with_servers import ServedTraining
from slurm_resolver.coordination.wire import (
    HANDSHAKE_SECONDS,
    MOST_BYTES,
    PROTOCOL,
    Message,
    Process,
    decode,
    encode,
    is_proof,
    prove,
)
from slurm_resolver.errors import RendezvousError
from slurm_resolver.timeouts import Timeouts

_TELL_SECONDS = 30.0  # for the tasks to learn, at the end of this process, that it cannot serve
# Linux takes a whole answer at once: this task may then hold the interpreter, and block the
# service.
_SEND_BYTES = 1 << 20
_TICK_SECONDS = 0.25
_PINGS = 6  # in the grace
# Connections of strangers, beyond those of missing tasks. The handshake ends them after 5 s, and
# those that were ended at once would come back at once.
_STRANGERS = 512
_SPARE_FILES = 96  # open in this process, beyond all connections
# For each turn of the loop, so that admitted tasks are served in a crowd; the kernel keeps more.
_ACCEPTED = 32
_BACKLOG = 4096


@dataclass
class _Link:
    """A process that represents a task, and its connection."""

    process: Process
    writer: StreamWriter | None = None  # None while the connection has failed
    # after the connection has failed: what will make the process lost, and why
    loss: asyncio.TimerHandle | None = None
    reason: str = ""

    def close(self) -> None:
        if self.writer:
            self.writer.close()
        self.writer = None


class Service:
    """The service. Other threads may call `close` only."""

    # whether it asks the tasks to close their connections
    _is_closing = False
    # when the next ping is due
    _pings_at = 0.0
    # why it cannot serve: the secret cannot be obtained, or too few files may be open
    _problem = ""
    # until when it waits, at its end, for the tasks to learn that
    _inform_until = inf

    def __init__(self, address: ServiceAddress, name_of: NameOf) -> None:
        """Takes the port, and serves in a thread.

        `name_of` returns how messages name a rank. Raises OSError if the port cannot be used.
        """
        self.address = address
        # the ranks that know why it cannot serve
        self._informed: set[object] = set()
        try:
            self._secret = Secret()
            _allow_connections(address)
        except RendezvousError as error:
            self._problem = str(error)
        self._socket = listen_at(address.port)
        # what the messages of the tasks are for
        self._rounds = Rounds(address, self.send, name_of)
        self._training = ServedTraining(address.grace, self.send, name_of)
        self._silence = Silence(address)
        self._monitor = Monitor(self.send, name_of, self._silence)
        self._name_of = name_of
        # by the first key of a message
        self._receivers = {
            "gather": self._rounds.message,
            "training": self._training.message,
            "progress": self._monitor.message,
            "told": self._tell,
        }
        # by rank
        self._links: dict[int, _Link] = {}
        # the ranks whose goodbyes the others are not told yet
        self._departed: list[int] = []
        # what tasks tell all others, by topic and rank
        self._told: dict[tuple[str, int], Message] = {}
        # the connections whose other end has not proved the secret; the oldest come first
        self._strangers: dict[StreamWriter, None] = {}
        self._thread = Thread(
            target=lambda: asyncio.run(self._serve()), name="slurm_resolver service", daemon=True
        )
        self._thread.start()

    @property
    def _own_name(self) -> str:
        return self._monitor.describe(
            Process(
                rank=self.address.rank,
                role="service",
                number="",
                pid=os.getpid(),
            )
        )

    def send(self, ranks: Container[int] | None, message: Message) -> None:
        """Sends a message to the processes of these tasks; None for all tasks."""
        line = encode(message)
        # This task comes last: see _SEND_BYTES.
        for link in sorted(
            self._links.values(), key=lambda link: link.process.rank == self.address.rank
        ):
            if (
                link.writer
                and not link.writer.is_closing()
                and (ranks is None or link.process.rank in ranks)
            ):
                link.writer.write(line)

    def close(self) -> None:
        """Ends the service once no task relies on it."""
        self._inform_until = monotonic() + _TELL_SECONDS
        self._training.is_leaving = True
        self._thread.join()

    async def _serve(self) -> None:
        """Serves until this process leaves and no task relies on the service any more."""
        server = await asyncio.start_server(
            self._admit, sock=self._socket, limit=MOST_BYTES, backlog=_ACCEPTED
        )
        self._socket.listen(_BACKLOG)
        while not self._training.is_leaving or self._has_to_tell():
            await sleep(_TICK_SECONDS)
            self._tick()
        # Each task closes its end of the connection once it has all messages.
        self._is_closing = True
        self.send(None, {"closing": True})
        until = monotonic() + self.address.grace
        while self._links and monotonic() < until:
            await sleep(_TICK_SECONDS / 25)
        server.close()
        await sleep(_TICK_SECONDS / 25)  # a new connection can be cancelled then

    def _tick(self) -> None:
        if self._departed:  # one message, as large steps end at once
            self.send(None, {"left": self._departed})
            self._departed = []
        self._rounds.tick(monotonic())
        self._watch_silence()
        if not self._silence.silent_for(_TICK_SECONDS):  # else it is unknown what they do now
            self._monitor.tick()

    def _has_to_tell(self) -> bool:
        """Whether tasks have to learn how the training ends, or that the service cannot start."""
        if not self._problem:
            return self._training.has_to_tell()
        return len(self._informed) < self.address.num_tasks and monotonic() < self._inform_until

    async def _admit(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serves one connection: a task's, an observer's or a stranger's."""
        self._strangers[writer] = None
        missing = self.address.num_tasks - len(self._links)
        if len(self._strangers) > missing + _STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        try:
            process = await asyncio.wait_for(self._shake(reader, writer), HANDSHAKE_SECONDS)
            self._strangers.pop(writer, None)
            if process.role != "observer":
                await self._attend(process, reader, writer)
        # a stranger, a task that will connect again, or the end of this process
        except (
            OSError,
            EOFError,
            asyncio.LimitOverrunError,
            asyncio.TimeoutError,
            asyncio.CancelledError,
        ):
            pass
        finally:
            self._strangers.pop(writer, None)
            writer.close()

    async def _shake(self, reader: StreamReader, writer: StreamWriter) -> Process:
        """Returns the process that connects, once it has proved the secret.

        Raises OSError if it is refused.
        """
        if self._problem:
            await self._tell_problem(reader, writer)
        if self._secret.is_due:  # munge may take long
            await get_running_loop().run_in_executor(None, self._secret.renew)
        challenge = token_hex(16)
        _send(
            writer,
            {
                "protocol": PROTOCOL,
                "challenge": challenge,
                "offer": self._secret.offer,
            },
        )
        hello = await _receive(reader)
        proof = hello.pop("proof", None)
        if hello.get("identity") != self.address.identity:
            _refuse(writer, other=True)
        process = self._process_of(hello)
        if not is_proof(
            proof,
            self._secret.key,
            "task",
            challenge,
            hello,
        ):
            _refuse(writer, refused=f"it has another secret. {REMEDY}")
        self._refuse_rival(process, writer)
        answer = {
            "proof": prove(
                self._secret.key,
                "service",
                challenge,
                hello,
            ),
            "rank": self.address.rank,
            "service": self._own_name,
        }
        if process.role == "observer":
            silent = self._silence.silent_for(self.address.grace / 2)
            answer["silent"] = [*map(self._monitor.describe, silent)]
            answer["workers"] = self._monitor.status()
        _send(writer, answer)
        return process

    async def _tell_problem(self, reader: StreamReader, writer: StreamWriter) -> NoReturn:
        """Tells the process that connects why this service cannot serve."""
        _send(
            writer,
            {
                "protocol": PROTOCOL,
                "identity": self.address.identity,
                "refused": f"it cannot start: {self._problem.rstrip('.')}",
            },
        )
        hello = await _receive(reader)
        self._informed.add(str(hello.get("rank")))
        raise ConnectionRefusedError

    def _process_of(self, hello: Message) -> Process:
        """Returns the process that says hello; raises OSError if it cannot be one of this step."""
        process = Process(*map(hello.get, Process._fields))  # type: ignore[arg-type]
        if (
            process.role in ("program", "launcher", "observer")
            and {*map(type, hello.values())} <= {int, str}
            and type(process.rank) is int
            and 0 <= process.rank < self.address.num_tasks
        ):
            return process
        raise ConnectionRefusedError

    def _refuse_rival(self, process: Process, writer: StreamWriter) -> None:
        """Raises OSError if a process cannot represent its task beside another one.

        It may also be a stranger, or need the next service.
        """
        link = None if process.role == "observer" else self._links.get(process.rank)
        if link:
            if link.process == process:  # it returns
                return
            if link.writer:
                _refuse(
                    writer,
                    refused=f"rank {process.rank} is represented by process {link.process.pid}, "
                    f"which still runs; process {process.pid} is its child, or a second program in "
                    "the task",
                )
        if self._is_closing or (link and not self._secret.key):
            raise ConnectionRefusedError  # the task's next program tries again

    async def _attend(self, process: Process, reader: StreamReader, writer: StreamWriter) -> None:
        """Passes on what a process sends, and notes why its connection ends."""
        link = self._enter(process, writer)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(SOL_SOCKET, SO_SNDBUF, _SEND_BYTES)
        detect_dead_peers(sock, self.address.grace / 2)
        try:
            while True:
                message = await _receive(reader)
                if "goodbye" in message:
                    self._end(link, message["goodbye"])
                    return
                if self._silence.heard(process):
                    self.send(None, {"silent": f"{self._name_of(process.rank)} answers again"})
                if "pong" not in message:
                    self._receivers[next(iter(message))](process, message)
        except BaseException as error:
            if link.writer is writer:
                self._lose(link, error)
            raise

    def _lose(self, link: _Link, error: BaseException) -> None:
        """Notes that a connection has failed; the process is lost unless it returns in time."""
        link.writer = None
        seconds = self.address.grace / 2  # once to notice the silence, and once to return
        link.reason = f"its node has not answered for {self.address.grace:g} s"
        if isinstance(error, (EOFError, ConnectionError)):
            if self._is_closing:  # it has all messages
                self._links.pop(link.process.rank, None)
                return
            # After an outage, a node resets the connections that it has given up before it returns;
            # a firewall may do so, too.
            link.reason = f"its connection was reset, and it has not returned for {seconds:g} s"
            if not isinstance(error, ConnectionResetError):
                seconds = Timeouts.closed
                link.reason = "its process has ended"
        link.loss = get_running_loop().call_later(seconds, self._end, link, link.reason)
        self._silence.heard(link.process)
        self._rounds.disconnected(link.process)

    def _tell(self, process: Process, message: Message) -> None:
        """Tells all tasks what a process tells them."""
        message = {**message, "rank": process.rank}
        self._told[message["told"], process.rank] = message
        self.send(None, message)

    def _enter(self, process: Process, writer: StreamWriter) -> _Link:
        """Lets a process represent its task by this connection, and tells it what others tell."""
        link = self._links.setdefault(process.rank, _Link(process))
        if link.loss:
            link.loss.cancel()
        if link.process != process:  # it has ended, and this process follows it
            self._report_end(link.process, link.reason)
            link = self._links[process.rank] = _Link(process)
        else:
            link.close()
        link.writer = writer
        for message in self._told.values():
            _send(writer, message)
        if self._is_closing:
            _send(writer, {"closing": True})
        return link

    def _watch_silence(self) -> None:
        """Pings all processes, names those that are silent, and ends those that stay silent."""
        now = self._silence.now
        if now >= self._pings_at:
            self._pings_at = now + self.address.grace / _PINGS
            self.send(None, {"ping": self._own_name})
            for link in self._links.values():
                if link.writer:
                    self._silence.await_answer(link.process)
        names = [*map(self._monitor.describe, self._silence.find())]
        if names:
            self.send(None, {"silent": describe(names, self.address)})
        for process in self._silence.silent_for(self.address.silence):
            self._end(self._links[process.rank], why_lost(self.address))
            self._rounds.end_without(process.rank)

    def _end(self, link: _Link, failure: str) -> None:
        """Notes the end of a process, and tells the others."""
        process = link.process
        if failure:
            self.send(None, {"gone": process.rank, "why": failure})
        elif process.role == "program":
            self._departed.append(process.rank)
        self._links.pop(process.rank, None)
        self._silence.heard(process)
        link.close()  # it may be stopped: it learns the reason once it continues
        if failure or process.role == "program":  # else its program follows
            self._rounds.ended(process, failure)
        self._report_end(process, failure)

    def _report_end(self, process: Process, failure: str) -> None:
        self._training.ended(process, failure)
        self._monitor.ended(process)


def _send(writer: StreamWriter, message: Message) -> None:
    writer.write(encode(message))


async def _receive(reader: StreamReader) -> Message:
    return decode(await reader.readuntil())


def _refuse(writer: StreamWriter, **message: object) -> NoReturn:
    """Tells a process why it is refused, and raises OSError."""
    _send(writer, message)
    raise ConnectionRefusedError


def _allow_connections(address: ServiceAddress) -> None:
    """Raises this process's limit on open files, or RendezvousError if it stays too low."""
    needed = address.num_tasks + _SPARE_FILES
    soft, hard = getrlimit(RLIMIT_NOFILE)  # never unlimited on Linux
    setrlimit(RLIMIT_NOFILE, (min(max(soft, needed + _STRANGERS), hard), hard))
    if hard < needed:
        raise RendezvousError(
            f"`ulimit -n` is {hard} on {address.node}: expected at least {needed} open files, one "
            f"for each of the {address.num_tasks} tasks and some more. Run `ulimit -n {needed}` "
            "before srun."
        )
