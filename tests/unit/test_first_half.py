"""What the tasks share by PMI-2 before they meet; a stand-in answers for slurmstepd.

The tasks are threads of one process. Live: tests/slurm/test_pmi2_meeting.py.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterator, List, Optional

import pytest
from free_ports import free_port
from pmi2_stepd import Stepd, frame

from slurm_resolver.errors import RendezvousError
from slurm_resolver.rendezvous import barrier, first_half, own_addresses, pmi2, secret
from slurm_resolver.rendezvous.first_half import FirstHalf, find_half, make_offer
from slurm_resolver.rendezvous.interfaces import Interface
from slurm_resolver.rendezvous.pmi2 import Pmi2Store, Pmi2Task
from slurm_resolver.rendezvous.point import Rendezvous

LONG = 60.0  # seconds that a test never waits
NAMES = ["rank 0", "rank 1", "rank 2"]
ALL = {"said": [0, 1, 2]}
SECRET = "5e" * 32


class Step:
    """Three tasks, of which rank 0 is the meeting point."""

    def __init__(self, stepd: Stepd) -> None:
        self._port = free_port()
        self.stepd = stepd
        self.halves: Dict[int, FirstHalf] = {}

    def find_half(self, point: Rendezvous) -> Optional[FirstHalf]:
        if point.rank not in self.halves:
            assert point.pmi2 is not None
            self.halves[point.rank] = FirstHalf()
            self.halves[point.rank].begin(point.pmi2, point.is_host)
        return self.halves[point.rank]

    def meet(
        self, rank: int, timeout: float = LONG, purpose: str = "x", by_pmi2: Any = None
    ) -> Dict[str, Any]:
        task = Pmi2Task(self.stepd.fd(rank), rank, 3, given=[(f"of/{rank}", str(rank))])
        point = Rendezvous("127.0.0.1", self._port, "n1", "7.0", rank, is_host=rank == 0, pmi2=task)
        note = {"says": rank}
        return barrier.meet(point, purpose, NAMES, note, decide, timeout, by_pmi2=by_pmi2)

    def take_port(self) -> socket.socket:
        """Listens where the tasks meet."""
        return socket.create_server(("127.0.0.1", self._port))


def decide(notes: Dict[int, Any]) -> Dict[str, Any]:
    return {"said": [notes[rank]["says"] for rank in range(3)]}


@pytest.fixture
def stepd() -> Iterator[Stepd]:
    stepd = Stepd([2, 1])
    yield stepd
    stepd.close()


@pytest.fixture
def step(stepd: Stepd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Step]:
    step = Step(stepd)
    stores: List[Pmi2Store] = []

    def open_store(task: Pmi2Task) -> Pmi2Store:
        stores.append(Pmi2Store(task, LONG))
        return stores[-1]

    monkeypatch.setattr(first_half, "find_half", step.find_half)
    monkeypatch.setattr(first_half, "open_store", open_store)
    monkeypatch.setattr(secret, "_by_pmi2", {})
    monkeypatch.setattr(secret, "_no_pmi2", {})
    monkeypatch.setattr(secret, "_own", {})
    monkeypatch.setattr(barrier, "_SHARE_SECONDS", 0.01)
    yield step
    for store in stores:
        store.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


@pytest.mark.parametrize("last", [0, 1, 2])
def test_tasks_that_have_met_without_it_leave_that_meeting_when_the_last_comes(
    step: Step, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    came = threading.Semaphore(0)  # to the first meeting
    wakes = FirstHalf.wakes

    def note(*given: Any) -> None:
        wakes(*given)
        came.release()

    monkeypatch.setattr(FirstHalf, "wakes", note)
    early = [pool.submit(step.meet, rank) for rank in range(3) if rank != last]
    assert came.acquire(timeout=LONG)
    assert came.acquire(timeout=LONG)
    assert not any(half.is_shared for half in step.halves.values())
    assert step.meet(last) == ALL
    assert [one.result() for one in early] == [ALL] * 2
    assert secret.describe_means()[0] == "PMI-2"
    again = [pool.submit(step.meet, rank, LONG, "y") for rank in range(3)]
    assert [one.result() for one in again] == [ALL] * 3
    assert step.stepd.requests.count("cmd=kvs-fence;") == 3  # one for each task


def by_pmi2(half: FirstHalf) -> Dict[str, Any]:
    return {"said": sorted(map(int, half.read(["of/2", "of/0", "of/1"]).values()))}


@pytest.mark.parametrize("last", [0, 1, 2])
def test_who_finds_the_answer_by_it_needs_no_second_meeting(
    step: Step, pool: ThreadPoolExecutor, last: int
) -> None:
    with step.take_port():  # nor a first one
        early = [pool.submit(step.meet, r, LONG, "x", by_pmi2) for r in range(3) if r != last]
        while len(step.halves) < 2:
            pass
        assert step.meet(last, LONG, "x", by_pmi2) == ALL
        assert [one.result() for one in early] == [ALL] * 2


def test_who_is_missing_is_told_where_the_answer_would_come_by_it(
    step: Step, pool: ThreadPoolExecutor
) -> None:
    came = [pool.submit(step.meet, rank, 1.5, "x", by_pmi2) for rank in (0, 2)]
    for one in came:
        with pytest.raises(RendezvousError, match=r"1 of 3 tasks are missing .*: rank 1\. They"):
            one.result()


def test_where_its_fence_never_ends_the_tasks_meet_without_and_never_use_it(
    step: Step, pool: ThreadPoolExecutor
) -> None:
    step.stepd.answer = lambda command, _: b"" if command == "kvs-fence" else None
    came = [pool.submit(step.meet, rank, 4.0) for rank in range(3)]
    assert [one.result() for one in came] == [ALL] * 3
    for half in step.halves.values():
        assert half.problem == "the tasks had met before its fence ended"
        half.take_offer(SECRET)  # it ends after all: too late
        assert not half.wait(0)
    assert secret.describe_means()[0] != "PMI-2"
    again = [pool.submit(step.meet, rank, LONG, "y") for rank in range(3)]
    assert [one.result() for one in again] == [ALL] * 3


def test_who_is_missing_is_told_while_its_fence_waits(step: Step, pool: ThreadPoolExecutor) -> None:
    came = [pool.submit(step.meet, rank, 1.5) for rank in (0, 2)]
    for one in came:
        with pytest.raises(RendezvousError, match=r"1 of 3 tasks are missing .*: rank 1\. They"):
            one.result()
    assert all(half.is_pending for half in step.halves.values())
    # They try again, and now all come.
    again = [pool.submit(step.meet, rank) for rank in range(3)]
    assert [one.result() for one in again] == [ALL] * 3
    assert secret.describe_means()[0] == "PMI-2"


FAULTS: Dict[str, Any] = {
    "an error": frame("cmd=kvs-fence-response;rc=1;"),
    "its end": frame("cmd=finalize-response;rc=0;"),
    "an offer of another version": frame("cmd=kvs-get-response;rc=0;found=TRUE;value=1:x;"),
}


@pytest.mark.parametrize("answer", FAULTS.values(), ids=FAULTS)
def test_where_pmi2_fails_in_all_tasks_they_meet_without(
    step: Step, pool: ThreadPoolExecutor, answer: bytes
) -> None:
    about = "kvs-get" if b"kvs-get" in answer else "kvs-fence"
    step.stepd.answer = lambda command, _: answer if command == about else None
    came = [pool.submit(step.meet, rank) for rank in range(3)]
    assert [one.result() for one in came] == [ALL] * 3
    assert all(half.problem for half in step.halves.values())
    assert secret.describe_means()[0] != "PMI-2"


def test_a_process_without_a_file_descriptor_left_meets_without(
    step: Step, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_store(task: Pmi2Task) -> Pmi2Store:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(first_half, "open_store", open_store)
    came = [pool.submit(step.meet, rank) for rank in range(3)]
    assert [one.result() for one in came] == [ALL] * 3
    assert all("Too many open files" in str(half.problem) for half in step.halves.values())


def test_what_is_shared_is_known_by_its_form() -> None:
    task = Pmi2Task(0, 0, 1)
    for good in (make_offer(task), SECRET, f"{SECRET} 10.0.0.1 fd00::1"):
        half = FirstHalf()
        half.take_offer(good)
        assert half.is_shared
        assert list(half.addresses) == good.split()[1:]
    assert make_offer(task) != make_offer(task)
    for bad in ("", "5e", f"{SECRET} n1;", f" {SECRET}", f"{SECRET}\n"):
        with pytest.raises(RendezvousError, match="all tasks need the same version"):
            FirstHalf().take_offer(bad)


def test_a_process_that_does_not_stand_for_its_task_touches_nothing(
    stepd: Stepd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_half, "_halves", {})
    monkeypatch.setattr(first_half, "claim_task", lambda _: False)
    point = Rendezvous("127.0.0.1", 1, "n1", "7.0", 0, is_host=True)
    assert find_half(point._replace(pmi2=Pmi2Task(stepd.fd(), 0, 3))) is None
    monkeypatch.setattr(first_half, "claim_task", None)
    assert find_half(point) is None
    assert stepd.requests == []


def test_while_a_thread_is_in_the_fence_nothing_else_is_asked(stepd: Stepd) -> None:
    stores = [Pmi2Store(Pmi2Task(stepd.fd(rank), rank, 3), LONG) for rank in range(3)]

    def come(store: Pmi2Store) -> threading.Thread:
        def share() -> None:
            with contextlib.suppress(RendezvousError):  # the first one has left by then
                store.share({}, [], LONG)

        thread = threading.Thread(target=share, daemon=True)
        thread.start()
        return thread

    waiting = come(stores[0])
    while "cmd=kvs-fence;" not in stepd.requests:
        pass
    with pytest.raises(RendezvousError, match="another thread of this process is in PMI-2's fence"):
        stores[0].share({}, [], 0.01)
    asked = list(stepd.requests)
    stores[0].finalize()  # as at the end of the process: it does not wait
    assert stepd.requests == asked
    for thread in (waiting, *map(come, stores[1:])):
        thread.join()
    for store in stores:
        store.close()


def test_the_addresses_of_a_node_are_those_that_others_can_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = [
        Interface("lo", "10.0.0.4", loopback=True),
        Interface("ib0", "fd00::5"),
        *(Interface("eth0", one) for one in ("127.0.0.1", "10.0.0.5", "169.254.1.1", "0.0.0.0")),
        Interface("eth1", "10.0.0.7", running=False),
        *(Interface("eth2", one) for one in ("10.0.0.6", "10.0.0.5", "fe80::1%2", "rubbish")),
    ]
    monkeypatch.setattr(own_addresses, "_source", lambda host: f"192.168.0.{host[-1]}")
    monkeypatch.setattr(own_addresses, "list_interfaces", lambda: there)
    found = own_addresses.own_addresses(["10.0.0.9"])
    assert found == ["192.168.0.9", "192.168.0.1", "10.0.0.5", "10.0.0.6", "fd00::5"]
    there[:] = [Interface("eth0", f"10.0.0.{n}") for n in range(1, 200)]
    assert len(own_addresses.own_addresses()) == 16
    monkeypatch.undo()
    for address in own_addresses.own_addresses(["127.0.0.1", "no address", "::1"]):
        assert not ipaddress.ip_address(address).is_loopback
    assert pmi2.has_store() is False
