"""Connects a task to the meeting point, by way of its node's first task where that is there.

A thread does it: a name may take many seconds to resolve, and the other tasks of the node must not
wait for that.
"""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from typing import Callable, Iterator, Optional

from slurm_resolver.errors import RendezvousError
from slurm_resolver.rendezvous.handshake import KeyOf, NoAnswerError, Offer, join
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.rendezvous.sockets import connect_to_name, find_vanished_peers
from slurm_resolver.rendezvous.wire import Connection, Limits

_CONNECT_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_AGAIN_SECONDS = 0.1
# For the node's first task to come, before the others try the meeting point themselves; at most a
# quarter of the time that there is.
_NODE_SECONDS = 2.0

Host = Optional[str]  # None is the first task of this node


class Connector:
    """Tries to connect until it has a connection, or is stopped.

    Attributes:
        problem: why the last attempt to reach the meeting point failed; None before.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        identity: str,
        key_of: KeyOf,
        deadline: float,
        limits: Limits,
        found: Callable[[Connection, bool], None],
        failed: Callable[[], None],
    ) -> None:
        """Takes what it connects to, and what to call with a connection, in its own thread.

        `found` also gets whether the connection is to the meeting point itself; `failed` is called
        when `problem` has become another one.
        """
        self._rendezvous = rendezvous
        self._identity = identity
        self._key_of = key_of
        self._deadline = deadline
        self._limits = limits
        self._found, self._failed = found, failed
        self._stopped = threading.Event()
        self._through_node = not rendezvous.leads_node and bool(rendezvous.own_node)
        self._is_on_node = rendezvous.own_node == rendezvous.node
        self._nameless = False  # whether the name of its node does not resolve here
        self.problem: Optional[Exception] = None

    def start(self) -> None:
        """Begins to connect."""
        self._start(0.0)

    def start_again(self) -> None:
        """Begins to connect once more, to the meeting point itself; the last connection ended."""
        self._through_node = False
        self._start(_AGAIN_SECONDS)

    def _start(self, pause: float) -> None:
        thread = threading.Thread(
            target=self._run, args=(pause,), name="slurm_resolver connector", daemon=True
        )
        thread.start()

    def stop(self) -> None:
        """Ends the attempts; a connection that comes of the last one is closed."""
        self._stopped.set()

    def _run(self, wait: float) -> None:
        self._stopped.wait(wait)
        pause, hosts = _FIRST_PAUSE, self._hosts()
        while not self._stopped.is_set() and time.monotonic() < self._deadline:
            host = next(hosts)
            try:
                connection = self._connect(host)
            except (OSError, ValueError, RendezvousError) as error:  # UnicodeError: a name
                if host is not None:
                    self._note(error)
                self._nameless = self._nameless or isinstance(error, socket.gaierror)
            else:
                if self._stopped.is_set():
                    connection.close()
                else:
                    self._found(connection, host is not None or self._is_on_node)
                return
            # At random, so that a thousand tasks do not all come at the same moment.
            self._stopped.wait(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _note(self, problem: Exception) -> None:
        """Keeps why the meeting point could not be reached, and lets the task know."""
        is_new = type(problem) is not type(self.problem)
        self.problem = problem
        if is_new:
            self._failed()

    def _hosts(self) -> Iterator[Host]:
        """Yields where to try, for ever; of several hosts the likeliest every second time."""
        rendezvous = self._rendezvous
        now = time.monotonic()
        until = now + min(_NODE_SECONDS, (self._deadline - now) / 4)
        while self._through_node and time.monotonic() < until:
            yield None
        others = rendezvous.addresses or rendezvous.other_hosts or (rendezvous.host,)
        for other in itertools.cycle(others):
            if not (self._nameless and rendezvous.addresses):
                yield rendezvous.host
            if self._through_node:
                yield None
            yield other

    def _connect(self, host: Host) -> Connection:
        # Not all of the time, so that it is known in time why it failed.
        timeout = min(0.9 * (self._deadline - time.monotonic()), _CONNECT_SECONDS)
        if timeout <= 0:
            raise TimeoutError("timed out")
        if host is None:
            sock = connect_to_name(self._rendezvous.node_socket(self._identity), timeout)
            connection = Connection.greet(sock, self._limits)
            key_of: KeyOf = _no_key
            patience = min(_NODE_SECONDS, timeout / 4)
        else:
            connection = Connection.open((host, self._rendezvous.port), timeout, self._limits)
            find_vanished_peers(connection.socket)
            key_of = self._key_of
            patience = 2 * self._limits.handshake_seconds
            self.problem = NoAnswerError("it gives no answer")  # unless it does
        try:
            until = time.monotonic() + patience
            join(connection, self._identity, key_of, self._rendezvous.name, until)
        except BaseException:
            connection.close()
            raise
        return connection


def _no_key(offer: Offer, name: str) -> bytes:
    return b""


def explain_problem(problem: Optional[Exception], rendezvous: Rendezvous) -> str:
    """Returns what most likely kept a task from the meeting point, and what to do."""
    if isinstance(problem, RendezvousError):
        return str(problem)
    if isinstance(problem, NoAnswerError):
        return (
            "It takes the connection and says nothing: the task there has been stopped, its node "
            f"is overloaded, or another process has port {rendezvous.port} there. Look at that "
            "node."
        )
    if isinstance(problem, (socket.gaierror, UnicodeError)):
        return (
            "The node's name does not resolve on this one: have it resolved (DNS, or the hosts "
            "file), or give node_address, which says where each node can be reached."
        )
    if isinstance(problem, ConnectionRefusedError):
        return (
            "Nobody listens there: the task there has not started, or has ended. Look at its "
            "output."
        )
    if isinstance(problem, (TimeoutError, OSError)) and not isinstance(problem, ConnectionError):
        return (
            "No packet comes back: look for a packet filter between the nodes (SrunPortRange and "
            "MpiParams ports are usually open), and whether that node is up."
        )
    return (
        f"Another process has port {rendezvous.port} there, or a task that is there for something "
        "else. Look at the output of the task there."
    )
