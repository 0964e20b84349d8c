"""The meeting point: the task at which all others come together, and which knows who is missing."""

from __future__ import annotations

import contextlib
import queue
import socket
import time
from typing import TYPE_CHECKING, Callable, Dict, Optional, Sequence

from slurm_resolver.errors import RendezvousError
from slurm_resolver.rendezvous.arrivals import listen_on_node, take_visit
from slurm_resolver.rendezvous.caller import CALL_AFTER_SECONDS, AddressesOf, Caller
from slurm_resolver.rendezvous.gathering import Gathering, Note, SharedMeanwhile, Visit
from slurm_resolver.rendezvous.member import BUSY_SECONDS, GRACE_SECONDS
from slurm_resolver.rendezvous.peer import Event, Peer
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.rendezvous.probe import process_listening_at
from slurm_resolver.rendezvous.secret import key_of_offer, own_secret
from slurm_resolver.rendezvous.server import Server
from slurm_resolver.rendezvous.sockets import listen_at_port
from slurm_resolver.rendezvous.wire import Connection, Limits, Message

if TYPE_CHECKING:
    from slurm_resolver.rendezvous.first_half import FirstHalf

Decide = Callable[[Dict[int, Note]], Message]

_BACKLOG = 4096
_CONFIRM_SECONDS = 3.0  # at least, for tasks to say that they are still there
# For PMI-2's fence to end once all tasks have come, at most a quarter of the time that is left.
_SHARE_SECONDS = 5.0
_MOST_NAMES = 20
_NO_LONGER = (
    "came, and no longer answer: they have been stopped, or their node does not answer. Look at "
    "these nodes."
)


class Host:
    """The meeting point: collects notes until all tasks have come, then sends all the answer."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        identity: str,
        names: Sequence[str],
        visit: Visit,
        limits: Limits,
        half: Optional[FirstHalf] = None,
    ) -> None:
        self._half = half  # where it comes to be shared, this meeting ends
        self._again = False  # whether a task has said that it has
        self._rendezvous = rendezvous
        self._identity = identity
        self._names = names
        self._limits = limits
        self._caller: Optional[Caller] = None
        self._call_at: Optional[float] = None
        self._called: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._gathering = Gathering(len(names), rendezvous.rank, visit)
        self._started = time.monotonic()
        self._stopped_seconds = 0.0  # for which this process did not run
        secret = own_secret(rendezvous.identity)  # first, as it may take a moment or fail
        try:
            listener = listen_at_port(rendezvous.port, _BACKLOG)
        except OSError as error:
            raise RendezvousError(
                f"{names[rendezvous.rank]} cannot listen at {rendezvous.name}: {error}. Another "
                f"process on this node has port {rendezvous.port}{_named(rendezvous.port)}. If it "
                "is this program as well, two processes act as one task: start one a task, with "
                "srun. If not, end it, or start with srun --resv-ports."
            ) from error
        listeners = [listener, *listen_on_node(rendezvous, identity)]
        self._server = Server(identity, listeners, len(names), secret, limits)
        if half is not None:
            half.wakes(self._server.wake)

    def go_on_from(self, earlier: Host) -> None:
        """Takes over what an earlier meeting, at which not all have come, has told."""
        if earlier is not self:
            self._gathering.go_on_from(earlier._gathering)
            self._stopped_seconds = earlier._stopped_seconds
            self._started = earlier._started

    def may_call(self, addresses_of: AddressesOf) -> None:
        """Calls the other nodes, if they do not come."""
        self._caller = Caller(
            self._rendezvous,
            self._identity,
            key_of_offer,
            addresses_of,
            self._limits,
            self._on_call,
        )
        seconds = self._gathering.deadline - time.monotonic()
        self._call_at = time.monotonic() + min(CALL_AFTER_SECONDS, seconds / 4)

    def _on_call(self, connection: Connection) -> None:
        self._called.put(connection)
        self._server.wake()

    def run(self, decide: Decide) -> Message:
        """Returns the answer, or the error, that all get.

        Raises:
            SharedMeanwhile: where the tasks have come to share a secret meanwhile.
        """
        try:
            reason = self._gather()
            waited = time.monotonic() - self._started
            answer = (
                {"error": reason(waited) + self._own_stop()} if reason else self._decide(decide)
            )
            self._server.finish(answer, GRACE_SECONDS)
            return answer
        finally:
            if self._caller is not None:
                self._caller.stop()
            self._server.close()
            while not self._called.empty():
                self._called.get().close()

    def _gather(self) -> Optional[Callable[[float], str]]:
        """Returns when all tasks are there: None, or what tells after a time who is not."""
        gathering, asked_at = self._gathering, None
        # Where this process was stopped, what has come meanwhile is read before it judges.
        is_due = False
        while True:
            self._end_if_shared()
            now = time.monotonic()
            until = gathering.deadline
            reason: Optional[Callable[[float], str]] = self._missing_message
            if gathering.complete:
                if asked_at is None:
                    asked_at = now
                    number = gathering.ask()
                    for peer in gathering.unconfirmed:
                        self._server.send(peer, {"here": number})
                until, reason = max(until, asked_at + _CONFIRM_SECONDS), self._silent_message
                if not gathering.unconfirmed:
                    if self._half is None or not self._half.is_pending:
                        return None
                    seconds = min(_SHARE_SECONDS, (gathering.deadline - asked_at) / 4)
                    until, reason = asked_at + seconds, None
                    if self._again:  # then it has ended, and this process is the last to hear of it
                        until, reason = gathering.deadline, self._unshared_message
            else:
                asked_at = None
                loss = None if self._again else gathering.next_loss
                if loss is not None and loss < until:
                    until, reason = loss, self._left_message
            if now >= until and is_due:
                return reason
            is_due = now >= until
            wake = until if gathering.complete else self._call_if_due(now, until)
            for event in self._server.events(wake - now):
                self._handle(event)
            self._stopped_seconds += max(0.0, time.monotonic() - max(now, until) - BUSY_SECONDS)
            while not self._called.empty():
                self._server.adopt(self._called.get())

    def _end_if_shared(self) -> None:
        if self._half is not None and self._half.is_shared:
            for peer in self._server.peers:
                self._server.send(peer, {"again": True})
            raise SharedMeanwhile

    def _call_if_due(self, now: float, until: float) -> float:
        """Begins to call the nodes when it is time; returns until when to wait, at most `until`."""
        if self._caller is None or self._call_at is None:
            return until
        if now < self._call_at:
            return min(until, self._call_at)
        self._call_at = None
        self._caller.start()
        return until

    def _handle(self, event: Event) -> None:
        peer, message, gathering = event.peer, event.message, self._gathering
        if message is None:
            gathering.end(peer, vanished=bool(event.reason) and not event.unreadable)
        elif "again" in message and peer.accepted:
            self._again = True
            gathering.leave(peer)
        elif "left" in message:
            gathering.end_rank(peer, message["left"])
        elif "here" in message:
            gathering.confirm(peer, message["here"], message.get("silent"))
        else:
            take_visit(self._server, gathering, event, self._names)

    def _decide(self, decide: Decide) -> Message:
        visits = self._gathering.visits
        seen = {peer: addresses(peer) for peer in {visit.peer for visit in visits.values()}}
        notes = {rank: {**visit.note, **seen[visit.peer]} for rank, visit in visits.items()}
        try:
            return {"answer": decide(notes)}
        except RendezvousError as error:
            return {"error": str(error), "all_came": True}
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            problem = f"{type(error).__name__}: {error}"
            return {
                "error": f"the tasks have come to {self._rendezvous.name}, but what they told "
                f"cannot be read ({problem}): all need the same version of slurm_resolver",
                "all_came": True,
            }

    def _own_stop(self) -> str:
        if not self._stopped_seconds:
            return ""
        name, seconds = self._names[self._rendezvous.rank], self._stopped_seconds + BUSY_SECONDS
        return (
            f" Meanwhile {name}, where they meet, did not run for {seconds:.0f} s: it had been "
            "stopped, or its node is overloaded."
        )

    def _missing(self, ranks: Sequence[int]) -> str:
        return f"{len(ranks)} of {len(self._names)} tasks are missing at {self._rendezvous.name}"

    def _list(self, ranks: Sequence[int]) -> str:
        shown = ", ".join(self._names[rank] for rank in ranks[:_MOST_NAMES])
        more = len(ranks) - _MOST_NAMES
        return f"{shown} and {more} more" if more > 0 else shown

    def _left_message(self, waited: float) -> str:
        gathering = self._gathering
        left = sorted(set(gathering.ended) - gathering.vanished)
        return (
            f"{self._missing(sorted({*gathering.absent, *gathering.ended}))}: {self._list(left)} "
            "came and ended again. Look at the output of these tasks."
        )

    def _missing_message(self, waited: float) -> str:
        gathering = self._gathering
        absent = sorted({*gathering.absent, *gathering.ended})
        what = f"{self._missing(absent)} after {waited:.0f} s"
        if self._server.lacks_files:
            return (
                f"{what}, as {self._names[self._rendezvous.rank]} there could not open a file for "
                "each connection. Raise its limit (ulimit -Hn) before srun."
            )
        parts = []
        silent = gathering.silent
        if silent:
            parts.append(f"{self._list(silent)} {_NO_LONGER}")
        never = [rank for rank in gathering.absent if rank not in silent]
        if never:
            parts.append(
                f"{self._list(never)}. They have not started, have ended, or cannot "
                "reach it: look at their output, and for a packet filter between the nodes."
            )
        if self._server.unproven:
            parts.append(
                f"{self._server.unproven} times somebody came who did not know the step's secret: "
                "these tasks, if SLURM_RESOLVER_SECRET or munge differ there, or strangers."
            )
        if gathering.ended:
            parts.append(
                f"{self._list(sorted(gathering.ended))} came, and the connection was lost since."
            )
        return f"{what}: {' '.join(parts)}"

    def _unshared_message(self, waited: float) -> str:
        return (
            f"all {len(self._names)} tasks came, but after {waited:.0f} s "
            f"{self._names[self._rendezvous.rank]} has not got by PMI-2 what they share, which "
            "others have. Start again, with SLURM_RESOLVER_PMI2=off to do without PMI-2."
        )

    def _silent_message(self, waited: float) -> str:
        silent = self._gathering.unconfirmed_ranks
        return f"{self._missing(silent)} after {waited:.0f} s: {self._list(silent)} {_NO_LONGER}"


def addresses(peer: Optional[Peer]) -> Note:
    """Returns the addresses of both ends of a connection, as `meet` adds them to a note."""
    came_from: Optional[str] = None
    reached_at: Optional[str] = None
    if peer is not None and peer.socket.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):  # it has ended
            came_from = _plain(peer.socket.getpeername()[0])
            reached_at = _plain(peer.socket.getsockname()[0])
    return {"came_from": came_from, "reached_at": reached_at}


def _plain(address: str) -> str:
    """Returns an IPv4 address that a socket of IPv6 shows as such."""
    return address[7:] if address.startswith("::ffff:") else address


def _named(port: int) -> str:
    process = process_listening_at(port)
    return f": {process}" if process else ""
