"""The state of a parameter server job, whatever its tasks do in whatever order."""

from __future__ import annotations

from typing import Dict, List, Optional, Set

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from monitored_jobs import address_of

from slurm_resolver.parameter_server.job_state import JobState
from slurm_resolver.parameter_server.protocol import JobResult
from slurm_resolver.parameter_server.training_watch import TrainingWatch

TIMEOUT = 100.0
JOBS = st.builds(
    lambda chief, servers, data_workers, workers: [
        *(["chief 0"] if chief else []),
        *(f"ps {index}" for index in range(servers)),
        *(["dispatcher 0"] if data_workers or not servers else []),
        *(f"data_worker {index}" for index in range(data_workers)),
        *(f"worker {index}" for index in range(workers)),
    ],
    st.booleans(),
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(1, 3),
)


class Tasks(RuleBasedStateMachine):
    """Tasks that join, serve, end well, fail and come back; and a model of what that means."""

    state: JobState

    @initialize(jobs=JOBS)
    def start(self, jobs: List[str]) -> None:
        self.jobs = jobs
        self.monitor = jobs.index("ps 0" if "ps 0" in jobs else "dispatcher 0")
        self.state = JobState(address_of(jobs, self.monitor, 1), TIMEOUT)
        self.leader = 0 if jobs[0] == "chief 0" else jobs.index("worker 0")
        self.waited = 0.0
        self.present: Set[int] = set()
        self.serving: Set[int] = set()
        self.ended: Dict[int, str] = {}  # of those that trained
        self.fatal = False
        self.result: Optional[JobResult] = None

    def is_server(self, rank: int) -> bool:
        return self.jobs[rank].startswith(("ps", "dispatcher", "data_worker"))

    def goes_on(self) -> bool:
        return self.result is None

    def absent(self) -> List[int]:
        return [r for r in range(len(self.jobs)) if r != self.monitor and r not in self.present]

    @precondition(lambda self: self.goes_on() and self.absent())
    @rule(data=st.data(), serves=st.booleans())
    def join(self, data: st.DataObject, serves: bool) -> None:
        rank = data.draw(st.sampled_from(self.absent()))
        assert self.state.has(rank)
        serves = serves and self.jobs[rank].startswith("worker")
        self.state.joined(rank, serves)
        self.present.add(rank)
        self.ended.pop(rank, None)
        self.serving.discard(rank)
        if serves:
            self.serving.add(rank)

    @precondition(lambda self: self.goes_on() and self.present)
    @rule(data=st.data())
    def only_serve(self, data: st.DataObject) -> None:
        workers = [r for r in sorted(self.present) if self.jobs[r].startswith("worker")]
        if workers:
            rank = data.draw(st.sampled_from(workers))
            self.state.only_serves(rank)
            self.serving.add(rank)

    @precondition(lambda self: self.goes_on() and self.serving)
    @rule(data=st.data())
    def train(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.serving)))
        self.state.trains(rank)
        self.serving.discard(rank)

    @precondition(lambda self: self.goes_on() and self.present)
    @rule(data=st.data(), failure=st.sampled_from(["", "exit status 3"]))
    def leave(self, data: st.DataObject, failure: str) -> None:
        rank = data.draw(st.sampled_from(sorted(self.present)))
        self.state.left(rank, failure)
        self.present.discard(rank)
        if self.is_server(rank):
            self.fatal = True
        elif rank not in self.serving:
            self.ended[rank] = failure
            self.fatal = self.fatal or (rank == self.leader and failure != "")
        self.serving.discard(rank)

    @precondition(lambda self: self.goes_on())
    @rule()
    def wait(self) -> None:
        self.waited = TIMEOUT

    @precondition(lambda self: not self.goes_on())
    @rule()
    def nothing_follows(self) -> None:
        assert self.state.result(self.waited) == self.result

    @invariant()
    def the_result_is_that_of_the_model(self) -> None:
        if not hasattr(self, "jobs") or self.result is not None:
            return
        self.result = self.state.result(self.waited)
        training = {r for r in self.present if not self.is_server(r)} - self.serving
        if self.fatal:
            assert self.result is not None
            assert self.result.status == 1
        elif self.result is not None and self.result.status == 0:
            assert self.ended.get(self.leader) == ""
            assert not training
            assert not any(self.ended.values())
            assert not any(self.is_server(rank) for rank in self.absent())
        elif self.result is not None:
            late = self.waited >= TIMEOUT
            assert late or any(self.ended.values())
            assert late or not training
        else:
            assert training or self.leader not in self.ended or self.waited < TIMEOUT

    @invariant()
    def all_tasks_but_that_of_the_monitor_join(self) -> None:
        if hasattr(self, "jobs"):
            joining = {rank for rank in range(len(self.jobs)) if self.state.has(rank)}
            assert joining == set(range(len(self.jobs))) - {self.monitor}
            for nobody in (-1, len(self.jobs), "0", None, True, 1.0):
                assert not self.state.has(nobody)


ALL = ["ps 0", "ps 1", "worker 0", "worker 1"]
# what happens, "+2" where rank 2 comes and "-2" where it leaves, "j2" where it only waits in join()
# and "t2" where it does more; what follows
WATCHED = {
    "": False,
    "+1 +2 +3": False,
    "+1 +2 +3 -2": False,
    "+1 +2 +3 -2 -3": True,
    "+2 -2 +3 -3 +1": True,
    "+1 +2 -2": False,  # the other may yet come
    "+2 -2 +3 -3": False,  # and so may a server, that has to be told
    "+1 -1 +2 -2 +3 -3": True,
    "+1 +2 +3 -2 +2 -3": False,
    "+1 +2 +3 j2 -3": False,  # it may serve somebody outside the step
    "+1 +2 +3 j2 j3": False,
}
WITH_CHIEF = {
    "+1 +2 +3": False,
    "+1 +2 +3 -2": False,
    "+1 +2 +3 j3": False,
    "+1 +2 +3 j3 -2": True,
    "+1 +2 +3 -2 j3": True,
    "+1 +2 +3 j3 t3 -2": False,
    "+1 +2 +3 j3 t3 -2 j3": True,
    "+1 +2 +3 j3 j2": False,
    "+2 +3 -2 j3": False,
    "+2 +3 -2 j3 +1": True,
    "+1 +2 -2": False,
    "+1 +2 +3 -2 +2 j3": False,
    "+1 +2 +3 j3 -3 +3 -2": False,  # another process comes as it
    "+1 +2 +3 -3 -2": True,
}


@pytest.mark.parametrize(
    ("jobs", "events", "expected"),
    [
        *((ALL, events, told) for events, told in WATCHED.items()),
        *(([*ALL[:2], "chief 0", "worker 0"], *case) for case in WITH_CHIEF.items()),
    ],
)
def test_a_watch_tells_when_no_one_trains(jobs: List[str], events: str, expected: bool) -> None:
    watch = TrainingWatch(address_of(jobs, 0, 1), 0.0)
    for event in events.split():
        assert watch.result(1e9) is None
        rank = int(event[1:])
        if event[0] == "+":
            watch.joined(rank, serves=False)
        elif event[0] == "-":
            watch.left(rank, "exit status 3")
        elif event[0] == "j":
            watch.only_serves(rank)
        else:
            watch.trains(rank)
    assert (watch.result(0.0) is not None) == expected
    assert watch.monitor_left("").status not in (0, 1)  # the others take it for nothing


def test_the_state_is_right_whatever_the_tasks_do(capsys: pytest.CaptureFixture[str]) -> None:
    run_state_machine_as_test(Tasks)
    capsys.readouterr()  # who was lost on the way
