"""A task's connection to the coordination service, from its first use to the task's end.

A thread holds the connection, reconnects after a failure of the network, and passes on what the
service says.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from json import dumps
from math import inf
from secrets import token_hex
from threading import TIMEOUT_MAX, Condition, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Callable

from slurm_resolver.coordination import NameOf, ServiceAddress
from slurm_resolver.coordination.secret import RefusedError
from slurm_resolver.coordination.silence import TICK_SECONDS, Clock, describe, why_lost
from slurm_resolver.coordination.tcp import detect_dead_peers, sockets_at
from slurm_resolver.coordination.wire import (
    MOST_BYTES,
    Connection,
    Gather,
    Message,
    encode,
    open_connection,
    unpack,
)
from slurm_resolver.errors import RendezvousError
from slurm_resolver.log import warn
from slurm_resolver.timeouts import Timeouts
from slurm_resolver.wording import brief

if TYPE_CHECKING:
    from slurm_resolver.coordination.service import Service  # asyncio takes long to import

_PORT_SECONDS = 10.0  # for a process that ends to free the port
_PAUSE = 0.2  # between two attempts to connect
_ANSWER_SECONDS = 5.0  # for the service to answer that the time is up, or to read the goodbye
_LEAVE_SECONDS = 30.0  # at the end of this process, for the service to start
_MOST_VALUE_BYTES = MOST_BYTES - 4096

Listener = Callable[[Message], None]


class Client:
    """The connection of this process."""

    service: Service | None = None
    # why the service could not be reached the last time, and why it does not admit this process
    problem = "it has not started, or has failed: look at the output of its task"
    refusal = ""
    # None while there is none
    _connection: Connection | None = None
    # whether this process has said goodbye
    _closed = False
    # the rank of the service's task, known once it has been reached
    _service_rank = 0
    # after a failure of the connection: when the service counts as gone
    _gone_at = inf
    # once the service has run and ended: why it is lost, or ""
    _end: str | None = None
    # when the log says that the service cannot be reached
    _notice_at = inf
    # whether the network has ended the last connection, not the service's process
    _was_cut = False
    # why the service cannot listen
    _port_problem: str | None = None

    def __init__(self, address: ServiceAddress) -> None:
        """Connects, in a thread. Starts the service first if the address says so."""
        self.address = address
        self.name_of: NameOf = "rank {}".format  # how messages name a rank
        self._process = f"{os.getpid()} {token_hex(8)}"
        # notified of each message, and of each change of the state
        self._changed = Condition()
        # how many gathers this task has begun, by purpose
        self.begun = Counter[str]()
        # what the service has answered to those that still run
        self._answers: dict[Gather, Message] = {}
        # what is sent again after a reconnection: values of gathers, and what `say` says by key
        self._standing: dict[object, Message] = {}
        # the latest message by each of its keys, and the first one to all tasks by topic
        self.latest: dict[str, Message] = {}
        self.told: dict[str, Message] = {}
        # by a key of the messages that they take
        self._listeners: dict[str, list[Listener]] = defaultdict(list)
        if address.rank <= 1:
            self._notice_at = monotonic() + Timeouts.first_notice
        self._start_service()  # now, as a process that ends can start no thread
        self._thread = Thread(target=self._run, name="slurm_resolver client", daemon=True)
        self._thread.start()

    def gather(
        self,
        purpose: str,
        value: Any,
        timeout: float | None,
        ranks: Sequence[int] | None = None,
    ) -> dict[int, Any]:
        """Returns the values that some tasks give, by rank. Each of them must call it.

        Args:
            purpose: what it is for, as messages name it, such as "the start".
            value: this task's value: at most 60 KiB as JSON in a JSON string.
            timeout: seconds to wait; the first task whose time is up ends the wait of all. None
                waits until all have come or one of them has ended, and reports no missing tasks.
            ranks: those that call it, in the order of the result; None for all.

        Raises:
            RendezvousError: in each of them, with the names of the missing or lost tasks.
        """
        seconds = inf if timeout is None else timeout
        all_ranks = range(self.address.num_tasks)
        if ranks is None:
            ranks = all_ranks
        without = [*{*all_ranks}.difference(ranks)]
        with self._changed:
            gather = self.offer(purpose, value, without=without, patient=timeout is None)

            def has_ended() -> object:
                # Another service may start, but not in time for a wait without a deadline.
                is_over = timeout is None and self._end == ""
                return gather in self._answers or self.refusal or self._end or is_over

            if not self.wait_for(has_ended, seconds) and self._connection:
                self.say(gather, gather=gather, late=seconds)
                self.wait_for(has_ended, _ANSWER_SECONDS)
            del self._standing[gather]
            answer = self._answers.pop(gather, {})
        if "values" in answer:
            values = unpack(answer["values"])
            return {rank: values[rank] for rank in ranks}
        if "error" in answer:
            raise RendezvousError(answer["error"])
        if self.refusal:
            raise RefusedError(self.refusal, unreached=True)
        why = f"did not answer within {brief(seconds)} s: {self.problem}"
        if self._end is not None:
            why = f"is gone, and cannot take part in {purpose}: {self._end or 'it has ended'}"
        raise RendezvousError(f"{self.address.name} {why}.", unreached=True)

    def offer(self, purpose: str, value: Any, **options: Any) -> Gather:
        """Gives this task's value for a gather, and returns the gather without waiting for it."""
        self.begun[purpose] += 1
        gather = Gather(purpose, self.begun[purpose])
        message = {"gather": gather, "value": dumps(value), **options}
        if len(encode(message)) > _MOST_VALUE_BYTES:
            raise ValueError(f"{purpose}: a value of more than {_MOST_VALUE_BYTES} bytes")
        self.say(gather, **message)
        return gather

    def tell(self, topic: str, value: str) -> None:
        """Tells all tasks something, also those that connect later."""
        self.say(f"tell {topic}", told=topic, value=value)

    def say(self, key: object, **message: Any) -> None:
        """Tells the service something, also after a reconnection unless `key` is said again."""
        with self._changed:
            self._standing[key] = message
            self._send(message)
            self._changed.notify_all()

    def wait_for(self, predicate: Callable[[], object], seconds: float = inf) -> bool:
        """Waits until a condition on messages or `refusal` is true; returns whether it is."""
        with self._changed:
            return bool(self._changed.wait_for(predicate, min(seconds, TIMEOUT_MAX)))

    def listen(self, key: str, listener: Listener) -> None:
        """Calls a function, in the connection's thread, for each message with this key."""
        self._listeners[key].append(listener)

    def leave(self, failure: str = "") -> None:
        """Says goodbye, and ends the connection; the service ends once no task relies on it."""
        with self._changed:
            if self._closed:
                return
            if self._standing or self._gone_at < inf:
                # The service may be about to start, or the connection has failed, and the other
                # tasks learn from the service who has left.
                self.wait_for(
                    lambda: self._connection or self.refusal or self._end is not None,
                    _LEAVE_SECONDS,
                )
            self._closed = True
            self._send({"goodbye": failure})
            connection = self._connection
            self._changed.notify_all()
        if connection:
            # A message that arrives after a close resets the connection, and the goodbye is lost.
            with suppress(OSError):
                connection.finish()
            self._thread.join(_ANSWER_SECONDS)
        if self.service:
            self.service.close()

    def _start_service(self) -> None:
        """Starts the service if it runs in this process, and its port is free.

        Otherwise another process of the task may serve, beside which this one is refused.
        """
        if self.address.hosts_service and not self.service:
            from slurm_resolver.coordination.service import Service

            try:
                self.service = Service(self.address, lambda rank: self.name_of(rank))
            except OSError as error:
                self._port_problem = error.strerror

    def _run(self) -> None:
        """Holds a connection until this process leaves or is refused; the thread of the client."""
        until = monotonic() + _PORT_SECONDS
        while not (self._closed or self.refusal):
            try:
                self._start_service()
                connection, answer = open_connection(self.address, self._process)
                with connection.socket:
                    self._attend(connection, answer)
            except RefusedError as error:
                self.refusal = str(error)
                if self._gone_at < inf:  # the service has given up this task since
                    self._end_training(self.address.rank, self.refusal)
            except (OSError, RendezvousError) as error:
                self._take_failure(error)
                if self.address.hosts_service and not self.service and monotonic() > until:
                    self.refusal = (
                        f"the coordination service cannot listen at port {self.address.port} of "
                        f"this node: {self._port_problem}. End the process that uses it, or choose "
                        "another port_base (--port-base); without it, start the step again."
                    )
                    warn("%s", self.refusal)  # this task may never wait for the others
            self.wait_for(lambda: self._closed or self.refusal, _PAUSE)
            # After the service's end there may never be another one, nor a need for one.
            self.wait_for(lambda: self._end is None or self._standing or self._closed)
        with self._changed:
            self._changed.notify_all()

    def _attend(self, connection: Connection, answer: Message) -> None:
        """Passes on what the service says."""
        detect_dead_peers(connection.socket, self.address.grace / 2)
        self._service_rank = answer["rank"]
        self.problem = "it was reached, but its process is stopped, or its node is silent"
        with self._changed:
            self._connection = connection
            self._gone_at = inf
            self._notice_at = inf
            self._end = None
            for standing in self._standing.values():
                self._send(standing)
            self._changed.notify_all()
        service = answer["service"]  # how it names itself
        clock = Clock()
        heard_at = 0.0
        while True:
            before = clock.now - heard_at
            seconds = clock.tick() - heard_at
            if before <= self.address.grace < seconds:
                warn("%s", describe([service], self.address))
            if before <= self.address.silence < seconds:
                self._lose_service(why_lost(self.address))
            message = connection.receive(monotonic() + TICK_SECONDS)
            if message is None:
                continue
            if seconds > self.address.grace:
                warn("%s answers again", self.name_of(self._service_rank))
            heard_at = clock.now
            if "ping" in message:
                service = message["ping"]
                self._send({"pong": True})
            if "closing" in message:
                self._end = self._end or ""
                connection.finish()
            self._dispatch(message)

    def _take_failure(self, error: Exception) -> None:
        """Notes that the connection, or a new one, has failed; after the grace it is gone."""
        now = monotonic()
        if self._connection:
            self._connection = None
            self._was_cut = type(error) is not ConnectionError
            if self._end is None:
                # If its node is silent, half of the grace is over.
                self._gone_at = now + self.address.grace / 2
            return
        self.problem = str(error).rstrip(".") or type(error).__name__
        if now > self._notice_at:
            self._notice_at = inf
            warn("waiting for %s: %s", self.address.name, self.problem)
        # A firewall refuses, too; it has cut the connection before.
        is_refused = isinstance(error, ConnectionRefusedError) and not self._was_cut
        if self._gone_at < inf and is_refused:
            self._lose_service("its process has ended")
        elif now >= self._gone_at:
            self._lose_service(f"it has not answered for {self.address.grace:g} s: {self.problem}")

    def _lose_service(self, why: str) -> None:
        """Notes that the process of the service is lost."""
        self._gone_at = inf
        self._end = why
        self._end_training(self._service_rank, why)

    def _end_training(self, rank: int, why: str) -> None:
        """Tells those who listen that a task is lost, and the service with it."""
        self._dispatch({"gone": rank, "why": why, "service": True})

    def _dispatch(self, message: Message) -> None:
        """Takes a message of the service, and passes it on to those who listen."""
        if self._closed:
            return
        if "silent" in message:
            warn("%s", message["silent"])
        elif "gathered" in message:
            self._answers[Gather(*message["gathered"])] = message
        elif "told" in message:
            self.told.setdefault(message["told"], message)
        for key in message:
            self.latest[key] = message
            for listener in self._listeners[key]:
                listener(message)
        with self._changed:
            self._changed.notify_all()

    def _send(self, message: Message) -> None:
        """Sends a message, unless there is no connection."""
        # The thread notices a failure, and connects again.
        with self._changed, suppress(OSError):
            if self._connection:
                self._connection.send(message)


_clients: dict[ServiceAddress, Client] = {}
_of_parents: list[Client] = []  # garbage collection would close reused file descriptors
_lock = Lock()


def connect(address: ServiceAddress, name_of: NameOf | None = None) -> Client:
    """Returns this process's connection, which the first call opens.

    `name_of` returns how messages name a rank; None leaves it as it is.
    """
    with _lock:
        client = _clients.get(address)
        if not client:
            client = _clients[address] = Client(address)
        client.name_of = name_of or client.name_of
        return client


def leave_all(failure: str = "") -> None:
    """Ends all connections of this process, for another program to represent its task."""
    while _clients:
        _, client = _clients.popitem()
        client.leave(failure)


def _leave_at_exit() -> None:
    """Says goodbye, with the exception that ends this process if there is one."""
    error = getattr(sys, "last_value", None)
    failure = f"{type(error).__name__}: {error}" if error else ""
    leave_all(failure.partition("\n")[0].rstrip(": ")[:500])


def _close_in_child() -> None:
    """Closes a forked process's copies of the connections."""
    global _lock
    _lock = Lock()  # another thread may have held it
    for address in _clients:
        for number, _ in sockets_at(address.port):
            os.close(number)  # the parent's stay open
    _of_parents.extend(_clients.values())
    _clients.clear()


atexit.register(_leave_at_exit)
os.register_at_fork(after_in_child=_close_in_child)
