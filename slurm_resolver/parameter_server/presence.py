"""Which process acts as each task of a job, and over which connection it is heard.

A process shows the same random number whenever it comes, and so is known when it comes again.

| event | consequence |
|---|---|
| its connection is closed | the process has ended: the task has left |
| its connection is lost after it told how it ends | the task has left, as it told |
| its connection is lost, and it comes again within the grace | nothing has happened |
| its connection is lost, and it does not come again | the task has left after the grace |
| it comes again before its old connection has ended | the end of the old one means nothing |
| what it said in an earlier turn comes after that | it means nothing |
| another process comes as the same task | it is refused until the task has left |
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Dict, List, NamedTuple, Optional

from slurm_resolver.rendezvous.peer import Peer

KILLED = "its process was killed or crashed"
FAILING_SECONDS = 5.0  # for a process to end after it has told that it has failed


class Arrival(enum.Enum):
    """Which process it is that comes as a task."""

    NEW = "the first, or one after the former has left"
    RETURNED = "the one that acts as the task"
    OVERTAKEN = "that one, by what it said before it came by another connection"
    ANOTHER = "another one than that"


class Departure(NamedTuple):
    """A task that has left: why it has failed, '' where it has not, and its connection if any."""

    rank: int
    failure: str
    peer: Optional[Peer] = None


@dataclasses.dataclass
class _Process:
    """A process that acts as a task.

    Attributes:
        number: what it shows to be known again.
        peer: its connection; None while it is away.
        turn: how often it had tried to come before it came by this one.
        told: how it ends, as it has told.
        deadline: when it counts as ended, unless it comes again before.
    """

    number: str
    peer: Optional[Peer]
    turn: int
    told: Optional[str] = None
    deadline: Optional[float] = None


class Presence:
    """The processes that act as tasks. All times are those of one clock, in seconds."""

    def __init__(self, grace: float) -> None:
        """Takes the seconds in which a process that has lost its connection may come again."""
        self._grace = grace
        self._processes: Dict[int, _Process] = {}  # by rank
        self._ranks: Dict[Peer, int] = {}  # only the connection that counts of each process

    def peer(self, rank: int) -> Optional[Peer]:
        """Returns the connection of a task; None where it has none."""
        process = self._processes.get(rank)
        return process.peer if process is not None else None

    def rank(self, peer: Peer) -> Optional[int]:
        """Returns the rank of the task that is heard over a connection; None if it is none."""
        return self._ranks.get(peer)

    @property
    def away(self) -> List[int]:
        """The ranks that have lost their connection, and may come again."""
        return [rank for rank, process in self._processes.items() if process.peer is None]

    @property
    def next_deadline(self) -> Optional[float]:
        """When the next task leaves unless something happens; None if none does."""
        times = (process.deadline for process in self._processes.values())
        return min((when for when in times if when is not None), default=None)

    def arrival(self, rank: int, number: str, turn: int = 0) -> Arrival:
        """Returns which process it is that shows this number and wants to act as a task.

        `turn` is how often it had tried to come before.
        """
        process = self._processes.get(rank)
        if process is None:
            return Arrival.NEW
        if process.number != number:
            return Arrival.ANOTHER
        return Arrival.OVERTAKEN if turn < process.turn else Arrival.RETURNED

    def come(self, rank: int, number: str, peer: Peer, turn: int = 0) -> None:
        """Notes that the process of this number is heard over this connection from now on."""
        process = self._processes.get(rank)
        if process is None:
            self._processes[rank] = _Process(number, peer, turn)
        else:
            assert process.number == number
            process.turn = turn
            if process.peer is not None:
                del self._ranks[process.peer]
            process.peer = peer
            if process.told is None:
                process.deadline = None
        self._ranks[peer] = rank

    def tell_end(self, peer: Peer, failure: str, now: float) -> None:
        """Notes that a process has told that it ends, and why it has failed; '' if it has not."""
        process = self._processes[self._ranks[peer]]
        process.told = failure
        if failure:  # TensorFlow may delay the end of its process
            process.deadline = now + FAILING_SECONDS

    def close(self, peer: Peer, reason: str = KILLED) -> Optional[Departure]:
        """Notes that a process has closed its connection, and returns which task has left."""
        rank = self._ranks.get(peer)
        return None if rank is None else self._leave(rank, reason)

    def lose(self, peer: Peer, silent: bool, now: float) -> Optional[Departure]:
        """Notes that a connection was lost, and returns which task has left by it.

        Args:
            peer: the connection.
            silent: whether it was lost as nothing had answered for the grace.
            now: the time.
        """
        rank = self._ranks.get(peer)
        if rank is None:
            return None
        process = self._processes[rank]
        if silent or process.told is not None:
            return self._leave(rank, f"its node has not answered for {self._grace:g} s")
        del self._ranks[peer]
        process.peer, process.deadline = None, now + self._grace
        return None

    def overdue(self, now: float) -> List[Departure]:
        """Returns the tasks that have left because their time is up."""
        reason = f"its connection was lost, and it has not come again within {self._grace:g} s"
        late = [r for r, p in self._processes.items() if p.deadline is not None]
        return [
            self._leave(rank, reason)
            for rank in sorted(late)
            if (self._processes[rank].deadline or 0.0) <= now
        ]

    def _leave(self, rank: int, reason: str) -> Departure:
        process = self._processes.pop(rank)
        if process.peer is not None:
            del self._ranks[process.peer]
        return Departure(rank, reason if process.told is None else process.told, process.peer)
