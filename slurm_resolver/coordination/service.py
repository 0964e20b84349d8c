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

Each task has one process: the next one, such as that of a second program in a batch file's command,
waits for the next service, which starts once the process of this one has ended.

A service that cannot serve, for example because it may not open enough files, tells each task why.
Its process ends only once all tasks know: they would wait for it.

At its end, the service asks each task to close its end of the connection, so that the task has all
messages. It waits for them for the grace.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter, get_running_loop, sleep
from contextlib import suppress
from json import loads
from math import inf
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from secrets import token_hex
from socket import SO_SNDBUF, SOL_SOCKET, socket
from threading import Thread
from time import monotonic

from slurm_resolver.coordination import NameOf, ServiceAddress
from slurm_resolver.coordination.progress import Monitor
from slurm_resolver.coordination.rounds import Rounds
from slurm_resolver.coordination.secret import REMEDY, Secret, find_means
from slurm_resolver.coordination.silence import describe, why_lost
from slurm_resolver.coordination.tasks import Link, Tasks
from slurm_resolver.coordination.tcp import detect_dead_peers, listen_at
from slurm_resolver.coordination.training_with_servers import ServedTraining
from slurm_resolver.coordination.wire import (
    HANDSHAKE_SECONDS,
    MOST_BYTES,
    PROTOCOL,
    Message,
    encode,
    is_proof,
    prove,
)
from slurm_resolver.errors import RendezvousError
from slurm_resolver.timeouts import Timeouts

_TELL_SECONDS = 30.0  # for the tasks to learn, at the end of this process, that it cannot serve
# Linux takes a whole answer at once.
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


class Service:
    """The service. Other threads may call `close` only."""

    # when its process was about to end, and whether it asks the tasks to close their connections
    _left_at = inf
    _is_closing = False
    # when the next ping is due
    _pings_at = 0.0
    # why it cannot serve: the secret cannot be obtained, or too few files may be open
    _problem = ""

    def __init__(self, address: ServiceAddress, name_of: NameOf) -> None:
        """Takes the port, and serves in a thread.

        `name_of` returns how messages name a rank. Raises OSError if the port cannot be used.
        """
        sock = listen_at(address.port)
        try:
            self._secret = Secret()
            _allow_connections(address)
        except RendezvousError as error:
            self._problem = str(error).rstrip(".")
        # the ranks that know the problem
        self._informed: set[object] = set()
        self._address = address
        self._tasks = Tasks(address, name_of)
        # what the messages of the tasks are for
        self._rounds = Rounds(self._tasks)
        self._training = ServedTraining(self._tasks)
        self._monitor = Monitor(self._tasks)
        # by the first key of a message
        self._receivers = {
            "gather": self._rounds.message,
            "training": self._training.message,
            "progress": self._monitor.message,
            "told": self._tell,
        }
        # why processes have failed or are lost; a lost one may return
        self._failures: dict[str, str] = {}
        # the ranks whose goodbyes the others are not told yet
        self._departed: list[int] = []
        # what tasks tell all others, by topic: the first one counts
        self._told: dict[str, Message] = {}
        # the messages by which the others learn of a task's end
        self._endings: list[Message] = []
        # the connections whose other end has not proved the secret; the oldest come first
        self._strangers: dict[StreamWriter, None] = {}
        self._thread = Thread(
            target=lambda: asyncio.run(self._serve(sock)),
            name="slurm_resolver service",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Ends the service once no task relies on it."""
        self._left_at = monotonic()
        self._thread.join()

    async def _serve(self, sock: socket) -> None:
        """Serves until this process leaves and no task relies on the service any more."""
        server = await asyncio.start_server(
            self._admit, sock=sock, limit=MOST_BYTES, backlog=_ACCEPTED
        )
        sock.listen(_BACKLOG)
        while self._left_at == inf or self._has_to_tell():
            await sleep(_TICK_SECONDS)
            self._tick()
        # Each task closes its end of the connection once it has all messages.
        self._is_closing = True
        self._tasks.send(None, {"closing": True})
        until = monotonic() + self._address.grace
        while self._tasks.links and monotonic() < until:
            await sleep(_TICK_SECONDS / 25)
        server.close()
        await sleep(_TICK_SECONDS / 25)  # a new connection can be cancelled then

    def _tick(self) -> None:
        """Pings all processes, names those that are silent, and ends those that stay silent."""
        tasks = self._tasks
        if self._departed:  # one message, as large steps end at once
            tasks.send(None, {"left": self._departed})
            self._departed = []
        self._rounds.tick()
        grace = self._address.grace
        named = tasks.silent_for(grace)
        now = tasks.clock.tick()
        if now >= self._pings_at:
            self._pings_at = now + grace / _PINGS
            tasks.send(None, {"ping": self._monitor.describe(self._address.rank)})
        silent = [rank for rank in tasks.silent_for(grace) if rank not in named]
        if silent:
            line = describe([*map(self._monitor.describe, silent)], self._address)
            tasks.send(None, {"silent": line})
        for rank in tasks.silent_for(self._address.silence):
            self._end(rank, why_lost(self._address))
        if not tasks.silent_for(grace / 4):  # else it is unknown what they do now
            self._monitor.tick()

    def _has_to_tell(self) -> bool:
        """Whether tasks have to learn how the training ends, or that the service cannot start."""
        if not self._problem:
            return self._training.has_to_tell()
        all_know = self._informed.issuperset(range(self._address.num_tasks))
        return not all_know and monotonic() < self._left_at + _TELL_SECONDS

    async def _admit(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serves one connection: a task's, an observer's or a stranger's."""
        self._strangers[writer] = None
        missing = self._address.num_tasks - len(self._tasks.links)
        if len(self._strangers) > missing + _STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        link = None
        # whatever a stranger's message causes, or the end of this process
        with suppress(Exception, asyncio.CancelledError):
            link = await asyncio.wait_for(self._shake(reader, writer), HANDSHAKE_SECONDS)
        self._strangers.pop(writer, None)
        if link:
            await self._attend(link, reader, writer)
        writer.close()

    async def _shake(self, reader: StreamReader, writer: StreamWriter) -> Link | None:
        """Admits the process that connects, once it has proved the secret."""
        greeting = {"protocol": PROTOCOL, "identity": self._address.identity}
        if self._problem:
            _send(writer, {**greeting, "refused": f"it cannot start: {self._problem}"})
            self._informed.add((await _receive(reader))["rank"])
            return None
        if monotonic() > self._secret.renew_at:  # munge may take long
            with suppress(RuntimeError):  # as this process ends; those that return know the key
                await get_running_loop().run_in_executor(None, self._secret.renew)
        key = self._secret.key
        challenge = token_hex(16)
        _send(writer, {**greeting, "challenge": challenge, "offer": self._secret.offer})
        hello = await _receive(reader)
        proof = hello.pop("proof")
        if is_proof(proof, key, "task", challenge, hello):
            answer = self._answer(hello["rank"], hello["process"])
        else:
            answer = {
                "refused": f"it has another secret, of the kind {find_means()!r}. {REMEDY}, and "
                "see that srun passes it on (--export)"
            }
        admits = "service" in answer
        if admits:
            answer["proof"] = prove(key, "service", challenge, hello)
        _send(writer, {**greeting, **answer})
        return self._enter(hello, writer) if admits and hello["rank"] >= 0 else None

    def _answer(self, rank: int, process: str) -> Message:
        """Returns what an observer asks for, or whether a process may represent its task."""
        answer = {"rank": self._address.rank, "service": self._monitor.describe(self._address.rank)}
        if rank < 0:
            silent = self._tasks.silent_for(self._address.grace / 2)
            answer["silent"] = [*map(self._monitor.describe, silent)]
            answer["workers"] = self._monitor.status()
            return answer
        if rank not in range(self._address.num_tasks):
            raise ValueError
        link = self._tasks.links.get(rank)
        if link and link.process == process:  # it returns
            return answer
        if process in self._failures:  # it returns too late
            return {"refused": f"it has given up this task ({self._failures[process]})"}
        if link and link.writer:
            return {
                "refused": f"rank {rank} is represented by process {link.process.split()[0]}, "
                f"which still runs; process {process.split()[0]} is its child, or a second program "
                "in the task"
            }
        if link or rank in self._tasks.endings or self._is_closing:
            return {"later": "the service of this task's last program still runs there"}
        return answer

    def _enter(self, hello: Message, writer: StreamWriter) -> Link:
        """Lets a process represent its task by this connection, and tells it what others tell."""
        link = self._tasks.links.setdefault(hello["rank"], Link(hello["rank"], hello["process"]))
        if link.loss:
            link.loss.cancel()
        link.close()
        link.writer = writer
        link.heard_at = self._tasks.clock.now
        for message in [*self._told.values(), *self._endings]:
            _send(writer, message)
        if self._is_closing:
            _send(writer, {"closing": True})
        return link

    async def _attend(self, link: Link, reader: StreamReader, writer: StreamWriter) -> None:
        """Passes on what a process sends, and notes why its connection ends."""
        rank = link.rank
        sock = writer.get_extra_info("socket")
        try:
            sock.setsockopt(SOL_SOCKET, SO_SNDBUF, _SEND_BYTES)
            detect_dead_peers(sock, self._address.grace / 2)
            while True:
                message = await _receive(reader)
                if "goodbye" in message:
                    self._end(rank, message["goodbye"])
                    return
                if self._tasks.clock.now - link.heard_at > self._address.grace:
                    self._tasks.send(None, {"silent": f"{self._tasks.name_of(rank)} answers again"})
                link.heard_at = self._tasks.clock.now
                if "pong" not in message:
                    self._receivers[next(iter(message))](rank, message)
        except (OSError, EOFError, asyncio.CancelledError) as error:
            if link.writer is writer:
                self._lose(link, error)

    def _lose(self, link: Link, error: BaseException) -> None:
        """Notes that a connection has failed; the process is lost unless it returns in time."""
        rank = link.rank
        link.writer = None
        if self._is_closing:  # it has all messages
            del self._tasks.links[rank]
            return
        seconds = self._address.grace / 2  # once to notice the silence, and once to return
        reason = f"its node has not answered for {self._address.grace:g} s"
        if isinstance(error, ConnectionResetError):
            # After an outage, a node resets the connections that it has given up before it returns;
            # a firewall may do so, too.
            reason = f"its connection was reset, and it has not returned for {seconds:g} s"
        elif isinstance(error, (EOFError, ConnectionError)):
            seconds = Timeouts.closed
            reason = "its process has ended"
        link.loss = get_running_loop().create_task(self._expire(rank, seconds, reason))

    async def _expire(self, rank: int, seconds: float, reason: str) -> None:
        """Ends a process that has not returned; the time stands still while this thread waits."""
        for _ in range(int(seconds / _TICK_SECONDS)):
            await sleep(_TICK_SECONDS)
        self._end(rank, reason)

    def _tell(self, rank: int, message: Message) -> None:
        """Tells all tasks what one of them tells first; the others, which were later, get that."""
        first = self._told.setdefault(message["told"], {**message, "rank": rank})
        self._tasks.send(None if first["rank"] == rank else [rank], first)

    def _end(self, rank: int, failure: str) -> None:
        """Notes the end of a process, and tells the others."""
        link = self._tasks.links[rank]
        if failure:
            self._endings.append({"gone": rank, "why": failure})
            self._tasks.send(None, self._endings[-1])
            self._failures[link.process] = failure
        else:
            self._endings.append({"left": [rank]})
            self._departed.append(rank)
        # It may be stopped: it learns the reason once it continues.
        link.close()
        del self._tasks.links[rank]
        self._tasks.endings[rank] = failure or "it has ended"
        self._rounds.ended()
        self._training.ended(rank, failure)
        self._monitor.ended(rank)


def _send(writer: StreamWriter, message: Message) -> None:
    writer.write(encode(message))


async def _receive(reader: StreamReader) -> Message:
    message: Message = loads(await reader.readuntil())
    return message


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
