"""Which process acts as each task, whatever connections are closed, lost and made again."""

from __future__ import annotations

import socket
from typing import Dict, List, Optional

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run

from slurm_resolver.parameter_server.presence import (
    FAILING_SECONDS,
    KILLED,
    Arrival,
    Departure,
    Presence,
)
from slurm_resolver.rendezvous.peer import Peer
from slurm_resolver.rendezvous.wire import LIMITS, Decoder

GRACE = 10.0
RANKS = st.integers(0, 3)
NOT_AGAIN = "its connection was lost, and it has not come again within 10 s"
SILENT = "its node has not answered for 10 s"


class Process:
    """The model of a process: it lives until it has left."""

    def __init__(self, number: str) -> None:
        self.number = number
        self.peer: Optional[Peer] = None
        self.told: Optional[str] = None
        self.deadline: Optional[float] = None


class Processes(RuleBasedStateMachine):
    """Processes that come, lose their connections, come again, tell their end, and are replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.presence = Presence(GRACE)
        self.now = 1000.0
        self.count = 0
        self.acting: Dict[int, Process] = {}
        self.old: List[Peer] = []  # connections that no longer count

    def new_peer(self) -> Peer:
        sock = socket.socket()
        sock.close()
        return Peer(sock, Decoder(LIMITS.message), None)

    def connected(self) -> List[int]:
        return sorted(rank for rank, process in self.acting.items() if process.peer is not None)

    def has_left(self, rank: int, departure: Optional[Departure], reason: str) -> None:
        process = self.acting.pop(rank)
        told = reason if process.told is None else process.told
        assert departure == Departure(rank, told, process.peer)
        if process.peer is not None:
            self.old.append(process.peer)

    @rule(rank=RANKS)
    def a_process_starts(self, rank: int) -> None:
        self.count += 1
        number = str(self.count)
        if rank in self.acting:
            assert self.presence.arrival(rank, number) is Arrival.ANOTHER
            return
        assert self.presence.arrival(rank, number) is Arrival.NEW
        process = self.acting[rank] = Process(number)
        process.peer = self.new_peer()
        self.presence.come(rank, number, process.peer)

    @precondition(lambda self: self.acting)
    @rule(data=st.data())
    def it_comes_again(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.acting)))
        process = self.acting[rank]
        assert self.presence.arrival(rank, process.number) is Arrival.RETURNED
        if process.peer is not None:
            self.old.append(process.peer)
        process.peer = self.new_peer()
        self.presence.come(rank, process.number, process.peer)
        if process.told is None:
            process.deadline = None

    @precondition(lambda self: self.connected())
    @rule(data=st.data(), failure=st.sampled_from(["", "exit status 3"]))
    def it_tells_its_end(self, data: st.DataObject, failure: str) -> None:
        process = self.acting[data.draw(st.sampled_from(self.connected()))]
        assert process.peer is not None
        self.presence.tell_end(process.peer, failure, self.now)
        process.told = failure
        if failure:
            process.deadline = self.now + FAILING_SECONDS

    @precondition(lambda self: self.connected())
    @rule(data=st.data())
    def it_ends(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(self.connected()))
        peer = self.acting[rank].peer
        assert peer is not None
        self.has_left(rank, self.presence.close(peer), KILLED)

    @precondition(lambda self: self.connected())
    @rule(data=st.data(), silent=st.booleans())
    def its_connection_is_lost(self, data: st.DataObject, silent: bool) -> None:
        rank = data.draw(st.sampled_from(self.connected()))
        process = self.acting[rank]
        assert process.peer is not None
        departure = self.presence.lose(process.peer, silent, self.now)
        if silent or process.told is not None:
            self.has_left(rank, departure, SILENT)
        else:
            assert departure is None
            self.old.append(process.peer)
            process.peer, process.deadline = None, self.now + GRACE

    @precondition(lambda self: self.old)
    @rule(data=st.data(), how=st.sampled_from(["close", "lose", "silent"]))
    def an_old_connection_ends(self, data: st.DataObject, how: str) -> None:
        """Of a process that has left, or has come again: it is nobody's end any more."""
        peer = data.draw(st.sampled_from(self.old))
        assert self.presence.rank(peer) is None
        if how == "close":
            assert self.presence.close(peer) is None
        else:
            assert self.presence.lose(peer, how == "silent", self.now) is None

    @rule(seconds=st.sampled_from([1.0, FAILING_SECONDS, GRACE]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        late = {
            rank
            for rank, process in self.acting.items()
            if process.deadline is not None and process.deadline <= self.now
        }
        departures = {departure.rank: departure for departure in self.presence.overdue(self.now)}
        assert set(departures) == late
        for rank, departure in departures.items():
            self.has_left(rank, departure, NOT_AGAIN)

    @invariant()
    def the_model_is_right(self) -> None:
        for rank in range(4):
            process = self.acting.get(rank)
            peer = process.peer if process is not None else None
            assert self.presence.peer(rank) is peer
            if peer is not None:
                assert self.presence.rank(peer) == rank
        away = {rank for rank, process in self.acting.items() if process.peer is None}
        assert set(self.presence.away) == away
        deadlines = [p.deadline for p in self.acting.values() if p.deadline is not None]
        assert self.presence.next_deadline == min(deadlines, default=None)


def test_what_was_said_before_another_connection_may_come_after_it() -> None:
    presence = Presence(GRACE)
    first, second = (Processes().new_peer() for _ in range(2))
    presence.come(0, "a", first, turn=1)
    presence.come(0, "a", second, turn=3)
    arrivals = {turn: presence.arrival(0, "a", turn) for turn in (2, 3, 4)}
    assert arrivals == {2: Arrival.OVERTAKEN, 3: Arrival.RETURNED, 4: Arrival.RETURNED}
    assert presence.arrival(0, "b", 1) is Arrival.ANOTHER
    presence.close(second)
    assert presence.arrival(0, "a", 1) is Arrival.NEW


def test_no_process_is_taken_for_another_whatever_they_do() -> None:
    run(Processes)
