"""Who has come to a meeting, whatever tasks, connections and processes do in whatever order."""

from __future__ import annotations

import itertools
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from slurm_resolver.rendezvous.gathering import LONGEST_SECONDS, RETURN_SECONDS, Gathering, Visit
from slurm_resolver.rendezvous.peer import Peer
from slurm_resolver.rendezvous.wire import Decoder

SECONDS = st.floats(0, 1000)


def a_peer() -> Peer:
    sock: Any = None  # nothing is sent through it
    return Peer(sock, Decoder(100), None)


def message(rank: Any, number: Any = "first", turn: Any = 1, seconds: Any = 60) -> Dict[str, Any]:
    return {"rank": rank, "visit": number, "turn": turn, "seconds": seconds, "note": {}}


class Process(NamedTuple):
    """One that acts as a task, in the model."""

    number: str
    turn: int
    peer: Peer


class Meeting(RuleBasedStateMachine):
    """Tasks that come, by connections of their own or of their node's first one, and end."""

    gathering: Gathering

    @initialize(tasks=st.integers(1, 6), data=st.data())
    def start(self, tasks: int, data: st.DataObject) -> None:
        self.tasks = tasks
        self.own = data.draw(st.integers(0, tasks - 1))
        self.least = time.monotonic() + 500
        self.gathering = Gathering(tasks, self.own, Visit({}, "own", None, self.least))
        self.numbers = itertools.count()
        self.peers: List[Peer] = [a_peer() for _ in range(3)]
        self.came: Dict[int, Process] = {}  # who has come last as this rank
        self.there: Set[int] = set()  # of these, whose connection is there
        self.vanished: Set[int] = set()
        self.asked: Optional[int] = None
        self.silent: Set[int] = set()  # who has not answered the last question

    def others(self) -> st.SearchStrategy[int]:
        return st.sampled_from([rank for rank in range(self.tasks) if rank != self.own])

    def arrive(self, rank: int, process: Process, seconds: float) -> None:
        self.came[rank] = process
        self.there.add(rank)
        self.vanished.discard(rank)
        self.least = min(self.least, time.monotonic() + seconds)

    @precondition(lambda self: self.tasks > 1)
    @rule(data=st.data(), seconds=SECONDS)
    def another_process_comes(self, data: st.DataObject, seconds: float) -> None:
        """It takes the place of one that has ended, not of one that is there."""
        rank, peer = data.draw(self.others()), data.draw(st.sampled_from(self.peers))
        process = Process(f"process {next(self.numbers)}", 1, peer)
        said = message(rank, process.number, process.turn, seconds)
        assert self.gathering.is_of_other(said) == (rank in self.came)
        if rank in self.there:
            assert self.gathering.add(peer, said) is None
        else:
            assert self.gathering.add(peer, said) == rank
            self.arrive(rank, process, seconds)

    @precondition(lambda self: self.came)
    @rule(data=st.data(), seconds=SECONDS)
    def it_comes_again(self, data: st.DataObject, seconds: float) -> None:
        rank = data.draw(st.sampled_from(sorted(self.came)))
        before, peer = self.came[rank], data.draw(st.sampled_from(self.peers))
        said = message(rank, before.number, before.turn + 1, seconds)
        assert not self.gathering.is_of_other(said)
        assert self.gathering.add(peer, said) == rank
        if peer is not before.peer:
            self.silent.discard(rank)
        self.arrive(rank, Process(before.number, before.turn + 1, peer), seconds)

    @precondition(lambda self: self.came)
    @rule(data=st.data(), seconds=SECONDS)
    def it_came_before_and_is_read_late(self, data: st.DataObject, seconds: float) -> None:
        """A node's first task that was stopped passes on what has come by another way since."""
        rank, peer = data.draw(st.sampled_from(sorted(self.came))), a_peer()
        late = message(rank, self.came[rank].number, self.came[rank].turn - 1, seconds)
        assert self.gathering.add(peer, late) is None
        assert not self.gathering.is_of_other(late)
        assert self.gathering.end(peer, vanished=False) == []

    @rule(data=st.data(), vanished=st.booleans())
    def a_connection_ends(self, data: st.DataObject, vanished: bool) -> None:
        peer = data.draw(st.sampled_from(self.peers))
        lost = sorted(rank for rank in self.there if self.came[rank].peer is peer)
        assert self.gathering.end(peer, vanished) == lost
        self.there.difference_update(lost)
        self.silent.difference_update(lost)
        if vanished:
            self.vanished.update(lost)
        self.peers[self.peers.index(peer)] = a_peer()

    @precondition(lambda self: self.tasks > 1)
    @rule(data=st.data(), rank=st.one_of(st.integers(-1, 6), st.none(), st.just("0")))
    def it_is_said_to_have_left(self, data: st.DataObject, rank: Any) -> None:
        """Only by the connection through which it came."""
        peer = data.draw(st.sampled_from(self.peers))
        self.gathering.end_rank(peer, rank)
        if rank in self.there and self.came[rank].peer is peer:
            self.there.discard(rank)
            self.silent.discard(rank)

    @rule()
    def ask(self) -> None:
        self.asked = self.gathering.ask()
        self.silent = set(self.there)

    @rule(data=st.data(), number=st.sampled_from(["the last", "an earlier one", None, "1"]))
    def confirm(self, data: st.DataObject, number: Any) -> None:
        peer = data.draw(st.sampled_from(self.peers))
        through = {rank for rank in self.silent if self.came[rank].peer is peer}
        of_peer = sorted(rank for rank in self.there if self.came[rank].peer is peer)
        told = data.draw(st.lists(st.sampled_from(of_peer))) if of_peer else []
        asked = {"the last": self.asked, "an earlier one": (self.asked or 0) - 1}
        self.gathering.confirm(peer, asked.get(number, number), [*told, 99, "0"])
        if number == "the last" and self.asked is not None and through:
            self.silent = (self.silent - through) | set(told)

    @rule(
        said=st.sampled_from(
            [message(-1), message(99), message(True), message("0"), message(0, number=1)]
            + [message(0, turn="1"), message(0, seconds=-1), message(0, seconds="1")]
            + [message(0, seconds=seconds) for seconds in (float("nan"), float("inf"), True)]
            + [message(0, seconds=2 * LONGEST_SECONDS), {}, {"rank": 0, "note": []}]
        )
    )
    def nonsense_comes(self, said: Dict[str, Any]) -> None:
        assert self.gathering.add(a_peer(), said) is None

    @invariant()
    def nobody_present_is_missing(self) -> None:
        if not hasattr(self, "came"):
            return
        gathering, ranks = self.gathering, set(range(self.tasks))
        assert set(gathering.absent) == ranks - set(self.came) - {self.own}
        assert set(gathering.ended) == set(self.came) - self.there
        assert gathering.complete == (self.there | {self.own} == ranks)
        assert set(gathering.visits) == set(self.came) | {self.own}

    @invariant()
    def only_who_is_silent_is_called_so(self) -> None:
        if hasattr(self, "came"):
            assert set(self.gathering.unconfirmed_ranks) == self.silent
            peers = {self.came[rank].peer for rank in self.silent}
            assert set(self.gathering.unconfirmed) == peers

    @invariant()
    def the_first_one_ends_it(self) -> None:
        if not hasattr(self, "came"):
            return
        assert self.gathering.deadline == pytest.approx(self.least, abs=5)
        loss = self.gathering.next_loss
        assert (loss is not None) == bool(set(self.came) - self.there - self.vanished)
        assert loss is None or loss <= time.monotonic() + RETURN_SECONDS


def test_who_has_come_is_right_whatever_the_tasks_do() -> None:
    run_state_machine_as_test(Meeting, settings=settings(max_examples=60))
