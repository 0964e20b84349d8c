"""A task that is not the meeting point itself; it may bring the other tasks of its node along."""

from __future__ import annotations

import contextlib
import queue
import socket
import time
from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

from slurm_resolver.errors import RendezvousError
from slurm_resolver.rendezvous.arrivals import BACKLOG, came_twice, listen_on_node, take_visit
from slurm_resolver.rendezvous.connector import Connector, explain_problem
from slurm_resolver.rendezvous.gathering import (
    RETURN_SECONDS,
    Gathering,
    SharedMeanwhile,
    Visit,
)
from slurm_resolver.rendezvous.handshake import KeyOf, NoAnswerError
from slurm_resolver.rendezvous.peer import Event, Peer
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.rendezvous.secret import own_secret
from slurm_resolver.rendezvous.server import Server
from slurm_resolver.rendezvous.sockets import listen_at_port
from slurm_resolver.rendezvous.wire import Connection, Limits, Message

if TYPE_CHECKING:
    from slurm_resolver.rendezvous.first_half import FirstHalf

GRACE_SECONDS = 4.0  # after the timeout, for the answer to arrive
_ANSWER_SECONDS = 1.0  # for the tasks of this node to say that they are there
# For the node's first task to do so; who goes to the meeting point by itself costs it a connection.
_NODE_ANSWER_SECONDS = 3.0
_AWAKE_SECONDS = 1.0
BUSY_SECONDS = 3.0  # for which a busy machine may not let this process run


class Member:
    """Comes to the meeting point, and waits for the answer."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        identity: str,
        names: Sequence[str],
        visit: Visit,
        key_of: KeyOf,
        limits: Limits,
        half: Optional[FirstHalf] = None,
    ) -> None:
        self._half = half  # where it comes to be shared, this meeting ends
        self._rendezvous = rendezvous
        self._names, self._name = names, names[rendezvous.rank]
        self._gathering = Gathering(len(names), rendezvous.rank, visit)
        listeners = listen_on_node(rendezvous, identity)
        self._server = Server(identity, listeners, len(names), limits=limits)
        self._limits = limits
        self._found: queue.SimpleQueue[Tuple[Connection, bool]] = queue.SimpleQueue()
        self._connector = Connector(
            rendezvous,
            identity,
            key_of,
            visit.until,
            limits,
            self._on_connection,
            self._server.wake,
        )
        self._listens = False  # whether the meeting point can call this node
        self._up: Optional[Peer] = None  # the connection to the meeting point, or on the way to it
        self._direct = False  # whether that is to the meeting point itself
        self._reached = False  # whether the meeting point itself has accepted this task
        self._was_reached = False  # the same, also where it has said that it comes again
        self._reached_before = False  # whether it had at an earlier meeting
        self._lost_at: Optional[float] = None  # when the last one ended
        self._vanished = False  # whether it ended because nothing answered
        self._question: Optional[object] = None  # what has to be confirmed, once all here have
        self._asked_at = 0.0  # when it came
        self._told_silent: List[int] = []  # who had not, when that was last told
        self._node_asked_at: Optional[float] = None  # when the node's first task was asked
        self._node_asked = 0  # and how often
        self._node_answered = 0
        self._answer: Optional[Message] = None
        self._stopped_seconds = 0.0  # for which this process did not run
        self._started = time.monotonic()
        if half is not None:
            half.wakes(self._server.wake)

    def go_on_from(self, earlier: Member) -> None:
        """Takes over what this task knows from an earlier meeting, at which not all have come."""
        if earlier is not self:
            self._reached_before = earlier._was_reached
            self._started = earlier._started
            self._stopped_seconds = earlier._stopped_seconds

    def run(self) -> Message:
        """Returns the answer, or an error: ``{"answer": …}`` or ``{"error": "…"}``.

        Raises:
            SharedMeanwhile: where the tasks have come to share a secret meanwhile.
        """
        self._connector.start()
        # Where this process was stopped, what has come meanwhile is read before it judges.
        is_due = False
        try:
            while self._answer is None:
                self._end_if_shared()
                until = self._until()
                now = time.monotonic()
                if now >= until and is_due:
                    self._answer = {"error": self._failure(), "unreached": True}
                    break
                is_due = now >= until
                wake = min(until, self._ask_again_at())
                if self._half is not None:  # awake often enough to see that it did not run
                    wake = min(wake, now + _AWAKE_SECONDS)
                for event in self._server.events(wake - now):
                    self._handle(event)
                late = time.monotonic() - max(now, wake) - BUSY_SECONDS
                self._stopped_seconds += max(0.0, late)
                self._take_connection()
                self._ask_node(now)
                self._confirm()
                self._listen_if_nameless()
            if self._up is not None:
                self._server.drop(self._up)
            if "twice" not in self._answer:  # else the tasks of this node go on without this one
                self._server.finish(self._answer, GRACE_SECONDS)
            return self._answer
        finally:
            self._connector.stop()
            self._server.close()
            while not self._found.empty():
                self._found.get()[0].close()

    def _end_if_shared(self) -> None:
        if self._half is not None and self._half.is_shared:
            if self._up is not None:
                self._server.send(self._up, {"again": True})
            raise SharedMeanwhile

    def _on_connection(self, connection: Connection, direct: bool) -> None:
        self._found.put((connection, direct))
        self._server.wake()

    def _until(self) -> float:
        """Returns until when to wait as things are."""
        until = self._gathering.deadline
        if self._up is not None:
            return until + GRACE_SECONDS
        if self._lost_at is not None and self._reached and not self._vanished:
            return min(until, self._lost_at + RETURN_SECONDS)
        return until

    def _ask_again_at(self) -> float:
        """Returns when a task of this node should have answered."""
        times = []
        if self._node_asked_at is not None:
            times.append(self._node_asked_at + _NODE_ANSWER_SECONDS)
        if self._question is not None and not self._told_silent:
            times.append(self._asked_at + _ANSWER_SECONDS)
        return min(times, default=float("inf"))

    def _ask_node(self, now: float) -> None:
        """Asks the node's first task whether it is there; goes on without it where it is not.

        It can be stopped, and then neither its own note nor an answer comes through it.
        """
        if self._up is None or self._node_asked_at is None:
            return
        if now < self._node_asked_at + _NODE_ANSWER_SECONDS:
            return
        if self._node_answered != self._node_asked:
            self._server.drop(self._up)
            self._lose_connection(vanished=True)
            return
        self._node_asked += 1
        self._node_asked_at = now
        self._server.send(self._up, {"there": self._node_asked})

    def _lose_connection(self, vanished: bool) -> None:
        self._lost_at = time.monotonic()
        self._vanished = vanished
        self._up = self._question = self._node_asked_at = None
        self._connector.start_again()

    def _take_connection(self) -> None:
        if self._up is not None or self._found.empty():
            return
        connection, direct = self._found.get()
        self._come(self._server.adopt(connection), direct)

    def _come(self, up: Peer, direct: bool) -> None:
        """Sends the notes of this task, and of those that have come to it."""
        self._up, self._direct = up, direct
        self._gathering.come_again()
        if not direct:
            self._node_asked_at, self._node_answered = time.monotonic(), self._node_asked
        for rank, visit in self._gathering.visits.items():
            if rank not in self._gathering.ended:
                self._server.send(self._up, visit.message(rank))

    def _listen_if_nameless(self) -> None:
        """Listens for the meeting point's call where the name of its node does not resolve here."""
        nameless = isinstance(self._connector.problem, socket.gaierror)
        if self._listens or not nameless or not self._rendezvous.leads_node:
            return
        self._listens = True
        with contextlib.suppress(OSError, RendezvousError):  # without that it is told as ever
            self._server.secret = own_secret(self._rendezvous.identity)
            self._server.listen(listen_at_port(self._rendezvous.port, BACKLOG))

    def _take_call(self, peer: Peer) -> None:
        """Takes a connection that the meeting point has opened as the one to it."""
        if self._up is not None or peer.accepted:
            return
        self._server.accept(peer)
        peer.decoder.max_bytes = self._limits.answer
        self._connector.stop()
        self._come(peer, direct=True)

    def _handle(self, event: Event) -> None:
        if event.peer is self._up:
            self._handle_up(event)
        else:
            self._handle_task(event)

    def _handle_up(self, event: Event) -> None:
        message = event.message
        if event.unreadable:
            answer = f"the answer of {self._rendezvous.name} cannot be read: {event.reason}"
            self._answer = {"error": answer, "unreached": True}
        elif message is None:
            self._lose_connection(vanished=bool(event.reason))
        elif "taken" in message:
            self._reached = self._was_reached = self._reached or self._direct
        elif "again" in message:
            self._reached = False  # it does not end: it goes to meet once more, as this task will
        elif "here" in message:
            self._ask(message["here"])
        elif "there" in message:
            self._node_answered = self._node_asked
        elif "refused" in message:
            self._refuse(message["refused"])
        elif "answer" in message or "error" in message:
            self._answer = message

    def _handle_task(self, event: Event) -> None:
        """Handles what another task of this node sends."""
        peer, message, gathering = event.peer, event.message, self._gathering
        if message is None:
            for ended in gathering.end(peer, vanished=False):
                if self._up is not None:
                    self._server.send(self._up, {"left": ended})
        elif "here" in message:
            gathering.confirm(peer, message["here"], message.get("silent"))
        elif "there" in message and peer.accepted:
            self._server.send(peer, {"there": message["there"]})
        elif "call" in message:
            self._take_call(peer)
        elif "again" in message and peer.accepted:
            gathering.leave(peer)
        else:
            rank = take_visit(self._server, gathering, event, self._names)
            if rank is not None and self._up is not None:
                self._server.send(self._up, gathering.visits[rank].message(rank))

    def _refuse(self, rank: object) -> None:
        """Tells a task that came through this one that another process has come as the same."""
        visit = self._gathering.visits.get(rank) if isinstance(rank, int) else None
        if isinstance(rank, int) and visit is not None:
            twice = came_twice(self._names[rank])
            if visit.peer is None:
                self._answer = twice
            else:
                self._server.send(visit.peer, twice)

    def _ask(self, question: object) -> None:
        """Asks the tasks of this node whether they are there, as the meeting point has asked."""
        self._question, self._asked_at, self._told_silent = question, time.monotonic(), []
        number = self._gathering.ask()
        for peer in self._gathering.unconfirmed:
            self._server.send(peer, {"here": number})

    def _confirm(self) -> None:
        """Answers the meeting point when all here have, or tells it after a while who has not."""
        silent = self._gathering.unconfirmed_ranks
        if self._question is None or self._up is None or silent == self._told_silent != []:
            return
        if silent and time.monotonic() < self._asked_at + _ANSWER_SECONDS:
            return
        self._server.send(self._up, {"here": self._question, "silent": silent})
        self._told_silent = silent
        if not silent:
            self._question = None

    def _failure(self) -> str:
        rendezvous, seconds = self._rendezvous, time.monotonic() - self._started
        if self._stopped_seconds:
            return (
                f"{self._name} did not run for {self._stopped_seconds + BUSY_SECONDS:.0f} s while "
                "the tasks met: it had been stopped, or its node is overloaded. Look at this node, "
                "and at the output of the others, which have not waited for it."
            )
        if self._up is not None and not self._direct:
            return (
                f"{self._name} came to {rendezvous.name} through the first task of its own node, "
                f"{rendezvous.own_node}, which has given no answer within {seconds:.0f} s. Look at "
                "the output of that task."
            )
        problem = self._connector.problem
        silent = self._reached_before and isinstance(problem, NoAnswerError)
        if self._up is not None or silent:
            return (
                f"{rendezvous.name} has not answered {self._name} within {seconds:.0f} s, though "
                "it was reached: it has been stopped, or its node does not answer. Look at that "
                "node."
            )
        if self._reached and not self._vanished:
            return (
                f"{rendezvous.name} has ended before it answered {self._name}: look at the output "
                "of the task there."
            )
        what = f"{self._name} could not reach {rendezvous.name} within {seconds:.0f} s"
        if isinstance(problem, RendezvousError):
            return f"{what}: {problem}"
        return f"{what} ({problem or 'no connection'}). {explain_problem(problem, rendezvous)}"
