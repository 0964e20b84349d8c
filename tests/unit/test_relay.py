"""The tasks of a node come to the monitor through one of them: no end is taken for another's.

Rank 0 is ps 0 with the monitor, in this process; the others are processes on one node.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import pytest
from folders import HELPERS
from frames import GREETING, Link, frame
from free_ports import free_port
from monitored_jobs import address_of

from slurm_resolver.parameter_server.channels import Channel
from slurm_resolver.parameter_server.job_state import JobState
from slurm_resolver.parameter_server.monitor import Monitor
from slurm_resolver.parameter_server.relayed_socket import ALIVE, DATA, UP
from slurm_resolver.parameter_server.route import Route

STRATEGY = ["ps 0", "chief 0", "ps 1", "worker 0", "worker 1"]
LEGACY = ["ps 0", "ps 1", "worker 0", "worker 1", "worker 2"]
KILLED = "its process was killed or crashed"
LONG, SHORT = 120, 4  # seconds of grace; a relay counts as stopped after a quarter

# A task that does what it is told, line by line, and ends with its input.
TASK = """
import os, resource, sys, time
exec(os.environ.get("FIRST", ""))
sys.path.insert(0, sys.argv[4])
from slurm_resolver.parameter_server.member import Member
from monitored_jobs import address_of
jobs, rank, port, grace = sys.argv[1].split(","), *map(int, sys.argv[2:4]), int(sys.argv[5])
task = Member(address_of(jobs, rank, port, grace, ["n8"] + ["n9"] * (len(jobs) - 1)), 0.3)
def serve():
    task.serve(60)
    result = task.wait()
    print(result.message, file=sys.stderr)
    sys.exit(result.status)
for line in sys.stdin:
    exec(line)
"""


class Task:
    """A task as a process of its own."""

    def __init__(self, job: Job, rank: int, **env: str) -> None:
        arguments = [",".join(job.jobs), str(rank), str(job.port), str(HELPERS), str(job.grace)]
        self.popen = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", TASK, *arguments],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )

    def say(self, line: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{line}\n")
        self.popen.stdin.flush()

    def ends(self) -> Tuple[int, str]:
        """Its exit status, and what it wrote to the standard error."""
        try:
            errors = self.popen.communicate(timeout=60)[1]
        finally:
            self.popen.kill()
        return self.popen.returncode, errors


class Job:
    """A monitor, and the tasks of one node."""

    def __init__(self, jobs: Sequence[str], grace: int) -> None:
        self.port = free_port()
        self.jobs, self.grace = list(jobs), grace
        nodes = ["n8"] + ["n9"] * (len(jobs) - 1)
        self.address = address_of(jobs, 0, self.port, grace, nodes)
        self.monitor = Monitor(self.address)
        self.monitor.serve(120.0)
        self.tasks: Dict[int, Task] = {}
        self.name = Route(self.address._replace(rank=1))._name

    def start(self, *ranks: int) -> None:
        """The first one comes alone, and so relays; then the others."""
        for rank in ranks:
            self.tasks[rank] = Task(self, rank)
            if rank == ranks[0]:
                self.await_way(rank, rank)
        for rank in ranks:
            self.await_way(rank, ranks[0])

    def serve(self) -> None:
        """Those who do not train serve from now on."""
        servers = {
            rank
            for rank in self.tasks
            if self.jobs[rank].startswith("ps") or ("chief 0" in self.jobs and rank > 1)
        }
        for rank in servers:
            self.tasks[rank].say("serve()")
        self.until(lambda: not servers & self.state._training, "those who serve")

    @property
    def state(self) -> JobState:
        """What the monitor knows."""
        state = self.monitor._state
        assert isinstance(state, JobState)
        return state

    def start_one(self, rank: int, **env: str) -> None:
        self.tasks[rank] = Task(self, rank, **env)

    def way(self, rank: int) -> Optional[int]:
        """The rank of the task that relays for it; -1 where none does, None where it is away."""
        peer = self.monitor._presence.peer(rank)
        if not isinstance(peer, Channel):
            return None if peer is None else -1
        channels = self.monitor._server._channels.get(peer.relay, {})
        return next((c.rank for c in list(channels.values()) if c.is_own), None)

    def await_way(self, rank: int, *wanted: int) -> None:
        self.until(lambda: self.way(rank) in wanted, f"the way of rank {rank}")

    def until(self, what: Callable[[], object], name: str) -> None:
        deadline = time.monotonic() + 60
        while not what():
            assert time.monotonic() < deadline, (name, {r: self.way(r) for r in self.tasks})
            time.sleep(0.01)

    def kill(self, rank: int, sign: signal.Signals = signal.SIGKILL) -> None:
        self.tasks[rank].popen.send_signal(sign)

    def say(self, rank: int, line: str) -> None:
        self.tasks[rank].say(line)

    def finish(self) -> None:
        """The chief finishes, and all others with it."""
        self.end(1)
        assert {rank: task.ends()[0] for rank, task in self.tasks.items()} == dict.fromkeys(
            self.tasks, 0
        )
        assert self.monitor.wait() == (0, "the chief has finished")

    def end(self, rank: int) -> None:
        self.say(rank, "sys.exit()")

    def come_again(self, *ranks: int) -> None:
        """They come through one of them, whichever."""
        for rank in ranks:
            self.await_way(rank, *ranks)
        assert len({self.way(rank) for rank in ranks}) == 1

    def come_alone(self, *ranks: int) -> None:
        for rank in ranks:
            self.await_way(rank, -1)

    def come_alone_or_end(self, rank: int) -> None:
        """The job may have ended by then."""
        self.until(
            lambda: self.way(rank) == -1 or self.monitor.decided, f"rank {rank} to come or to end"
        )

    def connections(self) -> int:
        server = self.monitor._server
        return len({peer.socket for peer in list(server._peers)})

    def lost(self, rank: int) -> None:
        """The monitor has noticed that the task has left."""
        self.until(lambda: rank not in self.state._present, f"rank {rank} to be lost")

    def close(self) -> None:
        for task in self.tasks.values():
            task.popen.kill()
            task.popen.communicate()


Start = Callable[..., Job]


@pytest.fixture
def start() -> Iterator[Start]:
    started: List[Job] = []

    def one(jobs: Sequence[str], grace: int) -> Job:
        started.append(Job(jobs, grace))
        return started[-1]

    yield one
    for job in started:
        job.close()


def play(*steps: Tuple[Any, ...]) -> Callable[[Job], None]:
    """("kill", 3) and so on: the methods of `Job`, one after the other."""

    def run(job: Job) -> None:
        for method, *arguments in steps:
            getattr(job, method)(*arguments)

    return run


class Case(NamedTuple):
    """What happens to the tasks of a job after they have come, the first of them as the relay."""

    jobs: Sequence[str]
    come: Sequence[int]
    events: Callable[[Job], None]
    statuses: Dict[int, int]
    told: str
    written: str = ""
    grace: int = LONG
    before: str = "pass"  # what the relay does first


CASES = {
    "the relay is killed": Case(
        STRATEGY,
        [3, 1, 2, 4],
        play(("kill", 3), ("lost", 3), ("come_again", 1, 2, 4), ("end", 1)),
        {1: 0, 2: 0, 3: -9, 4: 0},
        "the chief has finished",
        f"worker 0 (rank 3 on n9) is lost, the others go on: {KILLED}",
    ),
    "one relay after the other is killed": Case(
        STRATEGY,
        [3, 4, 1, 2],
        play(("kill", 3), ("come_again", 1, 2, 4), ("kill", 4), ("come_again", 1, 2), ("end", 1)),
        {1: 0, 2: 0, 3: -9, 4: -9},
        "the chief has finished",
        f"worker 1 (rank 4 on n9) is lost, the others go on: {KILLED}",
    ),
    "the relay is killed, and a child of it lives on": Case(
        STRATEGY,
        [3, 1, 2],
        play(("kill", 3), ("lost", 3), ("come_again", 1, 2), ("end", 1)),
        {1: 0, 2: 0, 3: -9},
        "the chief has finished",
        f"worker 0 (rank 3 on n9) is lost, the others go on: {KILLED}",
        before="if not os.fork(): os.closerange(0, 3); time.sleep(20); os._exit(0)",
    ),
    "the relay finishes, and with it the job": Case(
        STRATEGY,
        [1, 2, 3, 4],
        play(("end", 1)),
        dict.fromkeys([1, 2, 3, 4], 0),
        "the chief has finished",
    ),
    "the relay finishes before the others": Case(
        LEGACY,
        [2, 1, 3, 4],
        play(("end", 2), ("lost", 2), ("come_again", 1, 3, 4), ("end", 3), ("end", 4)),
        dict.fromkeys([1, 2, 3, 4], 0),
        "all workers have finished",
    ),
    "all finish at once": Case(
        LEGACY,
        [3, 1, 2, 4],
        play(("end", 3), ("end", 4), ("end", 2)),
        dict.fromkeys([1, 2, 3, 4], 0),
        "all workers have finished",
    ),
    "the relay fails": Case(
        LEGACY,
        [3, 1, 2, 4],
        play(
            ("say", 3, "sys.exit(3)"),
            ("lost", 3),
            ("come_again", 1, 2, 4),
            ("end", 2),
            ("end", 4),
        ),
        {1: 1, 2: 0, 3: 3, 4: 0},
        "worker 1 (rank 3 on n9) has failed: exit status 3",
        "worker 1 (rank 3 on n9) has failed, the others go on: exit status 3",
    ),
    "another one is killed": Case(
        STRATEGY,
        [3, 1, 2, 4],
        play(("kill", 4), ("lost", 4), ("await_way", 1, 3), ("await_way", 2, 3), ("end", 1)),
        {1: 0, 2: 0, 3: 0, 4: -9},
        "the chief has finished",
        f"worker 1 (rank 4 on n9) is lost, the others go on: {KILLED}",
    ),
    "another one fails": Case(
        STRATEGY,
        [3, 1, 2, 4],
        play(("say", 1, "raise ValueError('no data')")),
        {1: 1, 2: 1, 3: 1, 4: 1},
        "chief 0 (rank 1 on n9) has failed: ValueError: no data",
    ),
    "a parameter server is killed": Case(
        STRATEGY,
        [3, 1, 2, 4],
        play(("say", 1, "time.sleep(60)"), ("kill", 2)),
        {1: 1, 2: -9, 3: 1, 4: 1},
        f"ps 1 (rank 2 on n9) is lost, and its variables with it: {KILLED}",
    ),
    "the relay is a parameter server, and is killed": Case(
        STRATEGY,
        [2, 1, 3],
        play(("say", 1, "time.sleep(60)"), ("kill", 2)),
        {1: 1, 2: -9, 3: 1},
        f"ps 1 (rank 2 on n9) is lost, and its variables with it: {KILLED}",
    ),
    "the relay is stopped, and goes on": Case(
        STRATEGY,
        [3, 1, 2, 4],
        play(
            ("kill", 3, signal.SIGSTOP),
            ("come_alone", 1, 2, 4),
            ("kill", 3, signal.SIGCONT),
            ("end", 1),
        ),
        dict.fromkeys([1, 2, 3, 4], 0),
        "the chief has finished",
        "",
        SHORT,
    ),
    "the relay is stopped, and killed": Case(
        STRATEGY,
        [3, 1, 2],
        play(
            ("kill", 3, signal.SIGSTOP),
            ("come_alone", 1, 2),
            ("kill", 3),
            ("lost", 3),
            ("end", 1),
        ),
        {1: 0, 2: 0, 3: -9},
        "the chief has finished",
        "worker 0 (rank 3 on n9) is lost, the others go on: " + KILLED,
        SHORT,
    ),
    "another one is killed while the relay is stopped": Case(
        STRATEGY,
        [3, 1, 2, 4],
        play(
            ("kill", 3, signal.SIGSTOP),
            ("kill", 4),
            ("come_alone", 1, 2),
            ("kill", 3, signal.SIGCONT),
            ("lost", 4),
            ("end", 1),
        ),
        {1: 0, 2: 0, 3: 0, 4: -9},
        "the chief has finished",
        f"worker 1 (rank 4 on n9) is lost, the others go on: {KILLED}",
        SHORT,
    ),
    "one finishes while the relay is stopped": Case(
        STRATEGY,
        [3, 1, 2],
        play(
            ("kill", 3, signal.SIGSTOP),
            ("end", 1),
            ("come_alone_or_end", 2),
            ("kill", 3, signal.SIGCONT),
        ),
        {1: 0, 2: 0, 3: 0},
        "the chief has finished",
        "",
        SHORT,
    ),
    "the relay's connection is lost": Case(
        STRATEGY,
        [1, 2, 3, 4],
        play(("say", 1, "task._route._relay._over = True"), ("come_again", 1, 2, 3, 4), ("end", 1)),
        dict.fromkeys([1, 2, 3, 4], 0),
        "the chief has finished",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_no_end_is_taken_for_another_one_s(
    start: Start, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    job = start(case.jobs, case.grace)
    job.start(*case.come)
    assert job.connections() == 1
    job.say(case.come[0], case.before)
    job.serve()
    case.events(job)
    statuses = {}
    for rank, task in job.tasks.items():
        statuses[rank], errors = task.ends()
        if statuses[rank] in (0, 1) and job.jobs[rank].startswith("ps"):
            assert case.told in errors
        if statuses[rank] == 0:
            assert "Traceback" not in errors
    assert statuses == case.statuses
    assert job.monitor.wait().message.startswith(case.told)
    written = capsys.readouterr().err
    assert case.written in written
    assert bool(case.written) == bool(written), written


def test_another_process_as_the_same_task_is_refused(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    job = start(STRATEGY, LONG)
    job.start(3, 1, 2, 4)
    second = Task(job, 4)
    second.say("serve()")
    status, errors = second.ends()
    why = "is another process than the one that acts as this task, and which has not ended"
    assert (status, f"ps 0 (rank 0 on n8) {why}" in errors) == (1, True)
    assert f"worker 1 (rank 4 on n9) {why}" in capsys.readouterr().err
    assert [job.way(rank) for rank in (1, 2, 3, 4)] == [3] * 4
    job.serve()
    job.finish()


# packets of another process of the user
RUBBISH: Dict[str, List[bytes]] = {
    "nothing": [],
    "no packet of a task": [b"x"],
    "no greeting": [DATA + b"GET / HTTP/1.1\r\n"],
    "no JSON": [DATA + GREETING, DATA + struct.pack("!I", 3) + b"[[["],
    "no proof": [DATA + GREETING + frame({"rank": 2, "process": "first"})],
    "too long a message": [DATA + GREETING, DATA + struct.pack("!I", 10**9)],
    "too long a packet": [DATA + bytes(100_000)],
    "much": [DATA + GREETING, *[DATA + bytes(30_000)] * 100],
}
# messages of one that has come as a relay
WRONG_MESSAGES: List[Dict[str, Any]] = [
    {"open": "x"},
    {"open": 1, "own": 5},
    {"open": 1},
    {"channel": 1, "bytes": 5},
    {"open": 2},
    {"channel": 2, "bytes": "%%%"},
    {"open": 3},
    {"channel": 3},
    {"channel": [3], "close": {}},
    {"close": 9},
    {"lost": -1},
    {"rank": 1, "process": "first"},
]


def test_rubbish_harms_nobody(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    job = start(STRATEGY, LONG)
    job.start(3, 1, 2)
    job.serve()
    for packets in RUBBISH.values():
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.settimeout(20)
            stranger.connect(job.name)
            heard = stranger.recv(1000)
            while heard[:1] != UP:
                heard = stranger.recv(1000)
            with contextlib.suppress(OSError):
                for packet in packets:
                    stranger.send(packet)
                while packets and stranger.recv(1000):
                    pass
    relay = Link(socket.create_connection(("127.0.0.1", job.port), timeout=20), job.address.meeting)
    relay.say({"relay": True})
    for message in WRONG_MESSAGES:
        relay.say(message)
    relay.connection.close()
    assert [job.way(rank) for rank in (1, 2, 3)] == [3] * 3
    assert capsys.readouterr().err == ""
    job.finish()


class FalseRelay:
    """Takes the relay's place, passes on what it gets, and adds words of its own."""

    def __init__(self, job: Job) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(job.name)
        self.listener.listen()
        self.lock = threading.Lock()
        self.tasks: List[socket.socket] = []
        self.said: List[List[bytes]] = []
        place = socket.create_connection(("127.0.0.1", job.port), timeout=60)
        self.link = Link(place, job.address.meeting)
        self.link.say({"relay": True})
        threading.Thread(target=self.pass_down, daemon=True).start()

    def take(self) -> None:
        """Takes the next task that comes."""
        task = self.listener.accept()[0]
        self.tasks.append(task)
        self.said.append([])
        number = len(self.tasks) - 1
        task.send(ALIVE)
        task.send(UP + json.dumps(None).encode())
        with self.lock:
            self.link.say({"open": number, "own": False})
        threading.Thread(target=self.pass_up, args=(number,), daemon=True).start()

    def say(self, number: int, data: bytes) -> None:
        with self.lock:
            self.link.say({"channel": number, "bytes": base64.b64encode(data).decode()})

    def pass_up(self, number: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                packet = self.tasks[number].recv(100_000)
                if not packet:
                    with self.lock:
                        self.link.say({"close": number})
                    break
                self.said[number].append(packet[1:])
                self.say(number, packet[1:])

    def pass_down(self) -> None:
        with contextlib.suppress(OSError, AssertionError):
            while True:
                message = self.link.hear()
                if message is None:
                    self.link.connection.close()
                    break
                if "bytes" in message:
                    data = base64.b64decode(message["bytes"])
                    self.tasks[message["channel"]].send(DATA + data)

    def close(self) -> None:
        for sock in (self.listener, self.link.connection, *self.tasks):
            sock.close()


FORGED: Dict[str, Callable[[FalseRelay], bytes]] = {
    "made up": lambda relay: frame({"ends": ""}),
    "made up, with a mark": lambda relay: struct.pack("!I", 16 + 11) + bytes(16) + b'{"ends":""}',
    "another one's": lambda relay: relay.said[1][-1],
    "said before": lambda relay: relay.said[0][-1],
}


@pytest.mark.parametrize("name", FORGED)
def test_no_task_is_spoken_for_by_another(start: Start, name: str) -> None:
    job = start(STRATEGY, LONG)
    relay = FalseRelay(job)
    try:
        for rank in (1, 3):
            job.start_one(rank)
            relay.take()
            job.until(lambda: len(job.monitor._presence._processes) == len(relay.tasks), "it")
        job.say(1, "time.sleep(60)")
        job.say(3, "task._joined.wait(60); task._send(ends='')")
        job.until(lambda: len(relay.said[1]) == 4, "a word")
        relay.say(0, FORGED[name](relay))
        status, message = job.monitor.wait()
        assert status == 1
        told = "a message that somebody else has sent or changed"
        assert message == f"chief 0 (rank 1 on n9) has failed: {told}"
    finally:
        relay.close()


@pytest.mark.parametrize("listens", [None, "and says nothing", "and closes"])
def test_who_finds_no_relay_goes_alone(start: Start, listens: Optional[str]) -> None:
    job = start(STRATEGY, SHORT)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(job.name)
    if listens:
        listener.listen()

    def close_all() -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()

    if listens == "and closes":
        threading.Thread(target=close_all, daemon=True).start()
    with listener:
        for rank in (1, 2, 3):
            job.start_one(rank)
        job.come_alone(1, 2, 3)
        assert job.connections() == 3
        job.serve()
        job.finish()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("secret", ["", "SLURM_RESOLVER_SECRET"])
def test_a_relay_that_does_not_know_the_secret_keeps_nobody_away(
    start: Start, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv("SLURM_RESOLVER_SECRET", "x" * 16)
    job = start(STRATEGY, SHORT)
    first = "time.sleep(0)" if secret else "del os.environ['SLURM_RESOLVER_SECRET']"
    job.start_one(3, FIRST=first, **({secret: "y" * 16} if secret else {}))
    job.until(lambda: listens(job.name), "the relay")
    for rank in (1, 2):
        job.start_one(rank)
    for rank in (1, 2):
        job.await_way(rank, -1, 1, 2)
    job.kill(3)
    job.tasks.pop(3).ends()
    job.serve()
    job.finish()


def listens(name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        return sock.connect_ex(name) == 0


@pytest.mark.parametrize("files", [2, 8, 12])
def test_a_relay_that_may_open_few_files(start: Start, files: int) -> None:
    """Those for whom it has none go another way."""
    job = start(STRATEGY, SHORT)
    limit = f"[len(os.listdir('/proc/self/fd')) + {files}] * 2"
    # What the task imports has to be there before.
    first = "from slurm_resolver.parameter_server.member import Member"
    job.start_one(3, FIRST=f"{first}\nresource.setrlimit(resource.RLIMIT_NOFILE, {limit})")
    job.await_way(3, 3, -1)
    for rank in (1, 2, 4):
        job.start_one(rank)
    for rank in (1, 2, 4):
        job.await_way(rank, -1, 1, 2, 3, 4)
    job.serve()
    job.finish()


def test_who_ends_before_there_is_a_monitor_does_not_wait(start: Start) -> None:
    job = start(STRATEGY, LONG)
    job.port = free_port()
    name = Route(job.address._replace(rank=1, port=job.port))._name
    job.start_one(1)
    job.until(lambda: listens(name), "the relay")
    job.start_one(3)
    for rank in (3, 1):
        job.end(rank)
        assert job.tasks[rank].ends() == (0, "")


def test_a_monitor_that_is_late_has_one_connection(start: Start) -> None:
    job = start(STRATEGY, LONG)
    job.port = free_port()
    address = job.address._replace(port=job.port)
    for rank in (1, 2, 3, 4):
        job.start_one(rank)
    job.until(lambda: listens(Route(address._replace(rank=1))._name), "the relay")
    job.monitor = Monitor(address)
    job.monitor.serve(120.0)
    job.come_again(1, 2, 3, 4)
    assert job.connections() == 1
    job.serve()
    job.finish()
