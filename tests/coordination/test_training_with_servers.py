"""When a training with servers is over, and which tasks learn why, over real connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from captured import Captured, Patch
from kinds import Strings

from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.coordination.client import Client
from slurm_resolver.coordination.member import Member
from slurm_resolver.coordination.training_with_servers import Outcome, announcement
from slurm_resolver.timeouts import Timeouts


class Job:
    """The tasks of a step, all in this process. An evaluator, rank 0, runs the service."""

    def __init__(self, names: Strings, port: int) -> None:
        self.names = ["evaluator 0", *names]
        split = [name.split() for name in self.names]
        self.tasks = [(job, int(index), f"n{rank}:1") for rank, (job, index) in enumerate(split)]
        self.address = ServiceAddress(
            "127.0.0.1", port, "n0", "42.0 start 0", len(self.names), 0, True, 3.0
        )
        self.members: dict[str, Member] = {}
        self.host = self.connect(0)

    def connect(self, rank: int) -> Client:
        client = Client(self.address._replace(rank=rank, hosts_service=rank == 0))
        client.name_of = lambda rank: f"{self.names[rank]} (rank {rank} on n{rank})"
        return client

    def come(self, name: str, **more: object) -> Member:
        rank = self.names.index(name)
        announced = announcement(self.tasks, rank)
        assert announced is not None
        announced.update(more)
        member = Member(self.connect(rank), announced)
        assert member.client.wait_for(lambda: "over" in member.client.latest, 10)
        self.members[name] = member
        return member

    def do(self, acts: str) -> None:
        """Performs the acts of a line in the table, such as "worker 1 comes, worker 1 leaves"."""
        for act in acts.split(", "):
            name, _, verb = act.rpartition(" ")
            if verb in ("come", "comes"):
                for each in self.names[1:] if name == "all" else [name]:
                    self.come(each)
            elif verb in ("serves", "hurries"):
                self.members[name].serve(60 if verb == "serves" else 0.3)
            elif verb == "dies":
                kill(self.members[name].client)
            else:
                self.members[name].client.leave("ValueError: no" if verb == "fails" else "")
            time.sleep(0.05)


def kill(client: Client) -> None:
    """Closes a connection without a goodbye, like the kernel when a process ends."""
    client._closed = True
    assert client._connection is not None
    client._connection.socket.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def job(request: pytest.FixtureRequest, port: int) -> Iterator[Job]:
    job = Job(request.param, port)
    yield job
    for member in job.members.values():
        member.client.leave()
    job.host.leave()


C = [
    "chief 0",
    "ps 0",
    "worker 0",
    "worker 1",
]  # ranks 1 to 4
W = [
    "worker 0",
    "ps 0",
    "worker 1",
]
P = [
    "worker 0",
    "ps 0",
    "ps 1",
]
PS_LOST = "ps 1 (rank 3 on n3) is lost, and the training needs it: "
ENDED = "its process has ended"
FINISHED = Outcome(0, "all who train have finished")

CONTINUES: tuple[None, str] = (None, "")


def failed(message: str, said: str = "") -> tuple[Outcome, str]:
    return Outcome(1, message), said


# the tasks and their acts; the result of the job (None if it continues), and the standard error
CASES: dict[str, tuple[Strings, str, tuple[Outcome | None, str]]] = {
    "all who train finish": (
        W,
        "all come, worker 1 leaves, worker 0 leaves",
        (FINISHED, ""),
    ),
    "workers that only serve are not waited for": (
        C,
        "all come, worker 0 serves, worker 1 serves, chief 0 leaves",
        (FINISHED, ""),
    ),
    "a worker that trains beside the chief is waited for": (
        C,
        "all come, worker 0 serves, chief 0 leaves",
        CONTINUES,
    ),
    "the chief fails": (
        C,
        "all come, chief 0 fails",
        failed("chief 0 (rank 1 on n1) has failed: ValueError: no"),
    ),
    "another training worker is lost": (
        W,
        "all come, worker 1 dies, worker 0 leaves",
        failed(
            f"worker 1 (rank 3 on n3) has failed: {ENDED}",
            f"worker 1 (rank 3 on n3) has failed; the others continue: {ENDED}",
        ),
    ),
    "the last worker that only serves is lost": (
        C,
        "all come, worker 0 serves, worker 1 serves, worker 0 dies, worker 1 dies",
        failed(
            f"worker 1 (rank 4 on n4) is lost, and the training needs it: {ENDED}",
            f"worker 0 (rank 3 on n3) is lost; the others continue: {ENDED}",
        ),
    ),
    "a server is lost": (
        P,
        "all come, ps 1 dies",
        failed(PS_LOST + ENDED),
    ),
    "a server ends too early": (
        P,
        "all come, ps 1 leaves",
        failed(PS_LOST + "its process ended before those that it serves"),
    ),
    "a server does not come": (
        P,
        "worker 0 comes, ps 0 comes, ps 0 hurries",
        failed("ps 1 (rank 3 on n3) did not start within 0.3 s"),
    ),
    "a worker comes late": (
        C,
        "chief 0 comes, ps 0 comes, chief 0 leaves, worker 1 comes",
        (FINISHED, ""),
    ),
}


@pytest.mark.parametrize(
    ("job", "acts", "result"), CASES.values(), ids=list(CASES), indirect=["job"]
)
def test_when_it_is_over(
    job: Job,
    acts: str,
    result: tuple[Outcome | None, str],
    capfd: Captured,
) -> None:
    outcome, said = result
    job.do(acts)
    late = job.members.get("worker 1") if acts.endswith("worker 1 comes") else None
    observer = late or next(job.members[name] for name in job.members if name.startswith("ps 0"))
    observer.client.wait_for(lambda: observer.outcome, 3.0 if outcome is None else 10.0)
    assert observer.outcome == outcome
    assert capfd.readouterr().err == (f"slurm_resolver: {said}\n" if said else "")


@pytest.mark.parametrize("job", [W], indirect=True)
def test_a_worker_that_still_runs_after_the_leader_is_told_of_device_filters(
    job: Job, monkeypatch: Patch, capfd: Captured
) -> None:
    monkeypatch.setattr(Timeouts, "still_running", 0.0)
    job.do("all come, worker 0 leaves")
    told = ""
    until = time.monotonic() + 10.0
    while "device_filters" not in told and time.monotonic() < until:
        told += capfd.readouterr().err
        time.sleep(0.05)
    ended = "worker 0 (rank 1 on n1) has ended; still running: worker 1 (rank 3 on n3)."
    assert told.startswith(f"slurm_resolver: {ended}")


@pytest.mark.parametrize("job", [W], indirect=True)
def test_tasks_with_different_clusters_are_told(job: Job) -> None:
    first = job.come("worker 0")
    other = job.come("ps 0", cluster="another")
    assert (
        first.await_over()
        == other.await_over()
        == Outcome(
            1,
            "worker 0 (rank 1 on n1), ps 0 (rank 2 on n2) define different clusters: all tasks "
            "need the same arguments",
        )
    )


@pytest.mark.parametrize("job", [W], indirect=True)
def test_the_process_of_the_service_waits_until_those_who_train_have_left(job: Job) -> None:
    """The evaluator, whose process runs the service, ends first."""
    job.do("all come")
    worker = job.members["worker 1"].client
    leaving = threading.Thread(target=job.host.leave)
    leaving.start()
    job.do("worker 0 leaves")
    leaving.join(1.0)
    assert leaving.is_alive()
    worker.leave()
    assert job.members["ps 0"].await_over() == FINISHED
    job.do("ps 0 leaves")
    leaving.join(5.0)
    assert not leaving.is_alive()
