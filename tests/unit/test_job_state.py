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

TIMEOUT = 100.0
JOBS = st.builds(
    lambda chief, servers, workers: [
        *(["chief 0"] if chief else []),
        *(f"ps {index}" for index in range(servers)),
        *(f"worker {index}" for index in range(workers)),
    ],
    st.booleans(),
    st.integers(1, 3),
    st.integers(1, 3),
)


class Tasks(RuleBasedStateMachine):
    """Tasks that join, serve, end well, fail and come back; and a model of what that means."""

    state: JobState

    @initialize(jobs=JOBS)
    def start(self, jobs: List[str]) -> None:
        self.jobs = jobs
        self.monitor = jobs.index("ps 0")
        self.state = JobState(address_of(jobs, self.monitor, 1), TIMEOUT)
        self.leader = 0 if jobs[0] == "chief 0" else jobs.index("worker 0")
        self.waited = 0.0
        self.present: Set[int] = set()
        self.serving: Set[int] = set()
        self.ended: Dict[int, str] = {}  # of those that trained
        self.fatal = False
        self.result: Optional[JobResult] = None

    def is_server(self, rank: int) -> bool:
        return self.jobs[rank].startswith("ps")

    def goes_on(self) -> bool:
        return self.result is None

    def absent(self) -> List[int]:
        return [r for r in range(len(self.jobs)) if r != self.monitor and r not in self.present]

    @precondition(lambda self: self.goes_on() and self.absent())
    @rule(data=st.data(), serves=st.booleans())
    def join(self, data: st.DataObject, serves: bool) -> None:
        rank = data.draw(st.sampled_from(self.absent()))
        assert self.state.may_join(rank)
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
        elif self.result is not None:
            late = self.waited >= TIMEOUT
            assert late or any(self.ended.values())
            assert late or not training
        else:
            assert training or self.leader not in self.ended or self.waited < TIMEOUT

    @invariant()
    def only_absent_tasks_may_join(self) -> None:
        if hasattr(self, "jobs"):
            for rank in self.present | {self.monitor}:
                assert not self.state.may_join(rank)
            for nobody in (-1, len(self.jobs), "0", None):
                assert not self.state.may_join(nobody)


def test_the_state_is_right_whatever_the_tasks_do(capsys: pytest.CaptureFixture[str]) -> None:
    run_state_machine_as_test(Tasks)
    capsys.readouterr()  # who was lost on the way
