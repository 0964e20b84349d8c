"""Which tasks have come to a meeting, through which connection, and how long all can wait.

The meeting point keeps one for all tasks of the step, and the first task of each other node one for
the tasks of its node. A task comes again where its connection was lost: it shows the same number.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, NamedTuple, Optional, Set

from slurm_resolver.rendezvous.peer import Peer
from slurm_resolver.rendezvous.wire import Message

Note = Dict[str, Any]

RETURN_SECONDS = 3.0  # for a task whose connection has ended to come again
LONGEST_SECONDS = 1e6  # that a task may be willing to wait


class SharedMeanwhile(Exception):  # noqa: N818
    """The tasks have shared a secret while they met without it: they have to meet again, by it."""


class Visit(NamedTuple):
    """A task that has come.

    Attributes:
        note: what it tells.
        number: a random text, by which the process is known where it comes again.
        peer: the connection through which it came; None for the process itself.
        until: when its own time is up, on this process's clock of `time.monotonic`.
        turn: how often it has come before.
    """

    note: Note
    number: str
    peer: Optional[Peer]
    until: float
    turn: int = 0

    def message(self, rank: int) -> Message:
        """Returns the message by which the task comes to another process."""
        seconds = max(0.0, self.until - time.monotonic())
        came = {"visit": self.number, "turn": self.turn}
        return {"rank": rank, **came, "seconds": seconds, "note": self.note}


class Gathering:
    """The tasks that have come.

    Attributes:
        visits: by rank.
        ended: by rank, when the connection of one that had come ended.
        vanished: of these, the ranks whose node no longer answered; they may come until the end.
        deadline: when the time of the first one is up.
        silent: the ranks that had come to an earlier meeting, and have not come to this one.
    """

    def __init__(self, num_tasks: int, rank: int, own: Visit) -> None:
        """Takes the number of tasks of the step, and this process's own rank and visit."""
        self.num_tasks = num_tasks
        self.visits: Dict[int, Visit] = {rank: own}
        self.ended: Dict[int, float] = {}
        self.vanished: Set[int] = set()
        self.deadline = own.until
        self._came_before: Set[int] = set()
        self._ranks_of: Dict[Peer, Set[int]] = {}
        self._asked = 0
        self._unconfirmed: Dict[Peer, Set[int]] = {}

    def add(self, peer: Peer, message: Message) -> Optional[int]:
        """Notes that a task has come by this message, and returns its rank.

        None where it is no message of a task, another process came as the same task, or the task
        has come again since by another connection.
        """
        visit = _read_visit(peer, message)
        rank = message.get("rank")
        if visit is None or type(rank) is not int or not 0 <= rank < self.num_tasks:
            return None
        before = self.visits.get(rank)
        if before is not None and before.number != visit.number and rank not in self.ended:
            return None
        if before is not None and before.number == visit.number and visit.turn < before.turn:
            return None
        if before is not None and before.peer is not None and before.peer is not peer:
            self._ranks_of.get(before.peer, set()).discard(rank)
            self._confirm_rank(before.peer, rank)
        self.visits[rank] = visit
        self._ranks_of.setdefault(peer, set()).add(rank)
        self.ended.pop(rank, None)
        self.vanished.discard(rank)
        self.deadline = min(self.deadline, visit.until)
        return rank

    def come_again(self) -> None:
        """Counts that this process itself comes once more, by another connection."""
        for rank, visit in self.visits.items():
            if visit.peer is None:
                self.visits[rank] = visit._replace(turn=visit.turn + 1)

    def is_of_other(self, message: Message) -> bool:
        """Returns whether another process than the one that sends this has come as its task."""
        rank = message.get("rank")
        visit = self.visits.get(rank) if type(rank) is int else None
        return visit is not None and visit.number != message.get("visit")

    def go_on_from(self, earlier: Gathering) -> None:
        """Takes over who came to an earlier meeting, and whose connection ended there."""
        self._came_before = set(earlier.visits)
        self.ended = {rank: time.monotonic() for rank in earlier.ended}
        self.vanished = set(earlier.vanished)

    @property
    def silent(self) -> List[int]:  # noqa: D102
        return [rank for rank in self.absent if rank in self._came_before]

    def end(self, peer: Peer, vanished: bool) -> List[int]:
        """Notes that a connection has ended, and returns the ranks that had come through it."""
        ranks = sorted(self._ranks_of.pop(peer, ()))
        for rank in ranks:
            self._end_rank(rank, vanished)
        self._unconfirmed.pop(peer, None)
        return ranks

    def leave(self, peer: Peer) -> None:
        """Notes that the tasks of a connection go to another meeting: its end tells nothing."""
        self._ranks_of.pop(peer, None)
        self._unconfirmed.pop(peer, None)

    def end_rank(self, peer: Peer, rank: object) -> None:
        """Notes that a task has ended, as the peer tells through which it had come."""
        if isinstance(rank, int) and rank in self._ranks_of.get(peer, ()):
            self._ranks_of[peer].discard(rank)
            self._confirm_rank(peer, rank)
            self._end_rank(rank, False)

    def _end_rank(self, rank: int, vanished: bool) -> None:
        self.ended[rank] = time.monotonic()
        if vanished:
            self.vanished.add(rank)

    @property
    def complete(self) -> bool:
        """Whether all tasks of the step are there."""
        return len(self.visits) == self.num_tasks and not self.ended

    @property
    def absent(self) -> List[int]:
        """The ranks that have not come."""
        known = {*self.visits, *self.ended}
        return [rank for rank in range(self.num_tasks) if rank not in known]

    @property
    def next_loss(self) -> Optional[float]:
        """When the first task whose process has ended counts as lost; None if none has."""
        times = [when for rank, when in self.ended.items() if rank not in self.vanished]
        return min(times) + RETURN_SECONDS if times else None

    def ask(self) -> int:
        """Begins to ask every connection whether it is still there; returns the question's number.

        `unconfirmed` are the ones to ask.
        """
        self._asked += 1
        self._unconfirmed = {peer: set(ranks) for peer, ranks in self._ranks_of.items() if ranks}
        return self._asked

    def confirm(self, peer: Peer, number: object, silent: object = ()) -> None:
        """Notes that a connection has answered the question of this number.

        `silent` are the ranks that came through it and have not answered yet.
        """
        if number == self._asked and peer in self._unconfirmed:
            ranks = silent if isinstance(silent, (list, tuple)) else ()
            self._unconfirmed[peer] = self._ranks_of.get(peer, set()).intersection(
                rank for rank in ranks if type(rank) is int
            )
            if not self._unconfirmed[peer]:
                del self._unconfirmed[peer]

    def _confirm_rank(self, peer: Peer, rank: int) -> None:
        """Notes that no answer of this task is awaited through this connection."""
        ranks = self._unconfirmed.get(peer, set())
        ranks.discard(rank)
        if not ranks:
            self._unconfirmed.pop(peer, None)

    @property
    def unconfirmed(self) -> List[Peer]:
        """The connections that have not yet answered the last question."""
        return list(self._unconfirmed)

    @property
    def unconfirmed_ranks(self) -> List[int]:
        """The ranks that came through them, and have not answered it."""
        return sorted(rank for ranks in self._unconfirmed.values() for rank in ranks)


def _read_visit(peer: Peer, message: Message) -> Optional[Visit]:
    note, number, seconds = (message.get(key) for key in ("note", "visit", "seconds"))
    turn = message.get("turn", 0)
    if not isinstance(note, dict) or not isinstance(number, str) or type(turn) is not int:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return None
    if not 0 <= seconds <= LONGEST_SECONDS:
        return None
    return Visit(note, number, peer, time.monotonic() + seconds, turn)
