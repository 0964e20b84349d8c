"""A monitor and plain sockets as its tasks, then processes that end in every way."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import pytest
from folders import HELPERS
from frames import GREETING, Link, frame, read_frame
from free_ports import free_port
from monitored_jobs import address_of, cluster_of
from slurm_resolver.rendezvous.wire import LIMITS, Limits

import slurm_resolver as sr
from slurm_resolver.parameter_server import exit_status
from slurm_resolver.parameter_server.monitor import Monitor
from slurm_resolver.parameter_server.protocol import (
    SERVING_JOBS,
    MonitorAddress,
    monitor_address,
)


class FakeTask:
    """A task's side of its connection, word by word."""

    def __init__(self, address: MonitorAddress, task: int, **changes: Any) -> None:
        self.socket = socket.create_connection(("127.0.0.1", address.port), timeout=20)
        self.link = Link(self.socket, address.meeting)
        serves = address.tasks[task].job in SERVING_JOBS
        said = {"identity": address.identity, "rank": task, "process": "first", "serves": serves}
        self.say(**{**said, **changes})

    def say(self, **message: Any) -> None:
        self.link.say(message)

    def hear(self) -> Optional[Dict[str, Any]]:
        """The next message; None at the end of the connection."""
        answer: Optional[Dict[str, Any]] = self.link.hear()
        return answer

    def close(self) -> None:
        self.socket.close()


def reset(sock: socket.socket) -> None:
    """Ends a connection as a firewall may, and not as the kernel of a process that ends."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Job:
    """A monitor, and those who come to it."""

    def __init__(
        self, jobs: Sequence[str], timeout: float, limits: Limits, grace: Optional[int]
    ) -> None:
        port = free_port()
        rank = jobs.index("ps 0" if "ps 0" in jobs else "dispatcher 0")
        self.address = address_of(jobs, rank, port, grace)
        self.jobs = list(jobs)
        self.monitor = Monitor(self.address, limits)
        self.monitor.serve(timeout)
        self.lines: Dict[str, FakeTask] = {}

    def come(self, *names: str) -> None:
        for name in names:
            line = self.line(name)
            if name in self.lines:  # its old connection, which the monitor has dropped
                assert self.lines[name].hear() is None
                self.lines[name].close()
            self.lines[name] = line

    def line(self, name: str, process: str = "first") -> FakeTask:
        """A connection of the task, which is welcome."""
        line = FakeTask(self.address, self.jobs.index(name), process=process)
        answer = line.hear()
        assert answer is not None
        assert (answer["welcome"], answer["grace"]) == (True, self.address.grace)
        return line

    def lose(self, *names: str) -> None:
        """Their connections are reset, and not closed."""
        for name in names:
            reset(self.lines.pop(name).socket)

    def serve(self, *names: str) -> None:
        for name in names:
            self.lines[name].say(serves=True)

    def end(self, name: str, how: Optional[str] = None) -> None:
        """Ends a task: without a word, or with this reason ('' for none)."""
        line = self.lines.pop(name)
        if how is not None:
            line.say(ends=how)
        line.close()

    def lose_after(self, name: str, how: str) -> None:
        """It has told how it ends, and the monitor knows, when its connection is reset."""
        self.lines[name].say(ends=how)
        self.goes_on()
        self.lose(name)

    def goes_on(self) -> None:
        """The monitor has taken notice of all that was said before, and the job has not ended."""
        stranger = socket.create_connection(("127.0.0.1", self.address.port), timeout=20)
        stranger.sendall(b"nobody\n")
        assert read_frame(stranger)
        assert read_frame(stranger) is None
        stranger.close()
        assert not self.monitor.decided

    def close(self) -> None:
        for line in self.lines.values():
            line.close()


Steps = Callable[[Job], None]


def play(*steps: Tuple[Any, ...]) -> Steps:
    """("come", "ps 1") and so on: the methods of `Job`, one after the other."""

    def run(job: Job) -> None:
        for method, *arguments in steps:
            getattr(job, method)(*arguments)

    return run


STRATEGY = ["chief 0", "ps 0", "ps 1", "worker 0", "worker 1"]
LEGACY = ["ps 0", "ps 1", "worker 0", "worker 1", "worker 2"]
DATA = ["data_worker 0", "data_worker 1", "dispatcher 0", "worker 0", "worker 1"]
BOTH = ["chief 0", "ps 0", "worker 0", "dispatcher 0", "data_worker 0"]
WITH_CHIEF = ["chief 0", "ps 0", "worker 0"]  # that trains by itself
KILLED = "its process was killed or crashed"

# who is there; what they do; the exit status; what is told; what the monitor writes before
CASES: Dict[str, Tuple[List[str], Steps, int, str, str]] = {
    "the chief finishes": (
        STRATEGY,
        play(
            ("come", "ps 1", "worker 1", "worker 0", "chief 0"),
            ("serve", "worker 0", "worker 1"),
            ("goes_on",),
            ("end", "chief 0", ""),
        ),
        0,
        "the chief has finished",
        "",
    ),
    "the chief says nothing": (
        STRATEGY,
        play(("come", "ps 1", "chief 0", "worker 0"), ("end", "chief 0")),
        1,
        f"chief 0 (rank 0 on n8) has failed: {KILLED}",
        "",
    ),
    "the chief says why": (
        STRATEGY,
        play(("come", "chief 0", "ps 1"), ("end", "chief 0", "ValueError: no")),
        1,
        "chief 0 (rank 0 on n8) has failed: ValueError: no",
        "",
    ),
    "a worker that serves is lost": (
        STRATEGY,
        play(
            ("come", "chief 0", "ps 1", "worker 0", "worker 1"),
            ("serve", "worker 0", "worker 1"),
            ("end", "worker 1"),
            ("goes_on",),
            ("end", "chief 0", ""),
        ),
        0,
        "the chief has finished",
        f"worker 1 (rank 4 on n12) is lost, the others go on: {KILLED}",
    ),
    "a worker that serves is lost and comes back": (
        STRATEGY,
        play(
            ("come", "chief 0", "ps 1", "worker 0"),
            ("serve", "worker 0"),
            ("end", "worker 0"),
            ("goes_on",),
            ("come", "worker 0"),
            ("serve", "worker 0"),
            ("end", "chief 0", ""),
        ),
        0,
        "the chief has finished",
        "worker 0 (rank 3 on n11) is lost, the others go on",
    ),
    "a worker is late to serve": (
        STRATEGY,
        play(
            ("come", "chief 0", "ps 1", "worker 0"),
            ("end", "chief 0", ""),
            ("goes_on",),
            ("serve", "worker 0"),
        ),
        0,
        "the chief has finished",
        "",
    ),
    "a parameter server is lost": (
        STRATEGY,
        play(("come", "chief 0", "ps 1", "worker 0"), ("serve", "worker 0"), ("end", "ps 1")),
        1,
        f"ps 1 (rank 2 on n10) is lost, and its variables with it: {KILLED}",
        "",
    ),
    "a parameter server leaves": (
        STRATEGY,
        play(("come", "chief 0", "ps 1"), ("end", "ps 1", "")),
        1,
        "ps 1 (rank 2 on n10) is lost, and its variables with it: it has ended before the tasks",
        "",
    ),
    "all workers finish that a data service serves": (
        DATA,
        play(
            ("come", "worker 0", "data_worker 1", "data_worker 0", "worker 1"),
            ("end", "worker 0", ""),
            ("goes_on",),
            ("end", "worker 1", ""),
        ),
        0,
        "all workers have finished",
        "",
    ),
    "worker 0 fails that a data service serves": (
        DATA,
        play(
            ("come", "worker 0", "data_worker 1", "data_worker 0", "worker 1"),
            ("end", "worker 0", "exit status 3"),
        ),
        1,
        "worker 0 (rank 3 on n11) has failed: exit status 3",
        "",
    ),
    "a data worker is lost": (
        DATA,
        play(
            ("come", "worker 0", "worker 1", "data_worker 1", "data_worker 0"),
            ("end", "data_worker 1"),
        ),
        1,
        f"data_worker 1 (rank 1 on n9) is lost, and data with it: {KILLED}",
        "",
    ),
    "a dispatcher beside parameter servers is lost": (
        BOTH,
        play(
            ("come", "chief 0", "dispatcher 0", "data_worker 0", "worker 0"),
            ("serve", "worker 0"),
            ("end", "dispatcher 0"),
        ),
        1,
        f"dispatcher 0 (rank 3 on n11) is lost, and the data service with it: {KILLED}",
        "",
    ),
    "the chief finishes beside all servers": (
        BOTH,
        play(
            ("come", "chief 0", "dispatcher 0", "data_worker 0", "worker 0"),
            ("serve", "worker 0"),
            ("end", "chief 0", ""),
        ),
        0,
        "the chief has finished",
        "",
    ),
    "the chief finishes before one who trains": (
        WITH_CHIEF,
        play(
            ("come", "chief 0", "worker 0"),
            ("end", "chief 0", ""),
            ("goes_on",),
            ("end", "worker 0", ""),
        ),
        0,
        "the chief has finished",
        "",
    ),
    "one who trains fails beside the chief": (
        WITH_CHIEF,
        play(
            ("come", "chief 0", "worker 0"),
            ("end", "worker 0", "exit status 3"),
            ("goes_on",),
            ("end", "chief 0", ""),
        ),
        1,
        "worker 0 (rank 2 on n10) has failed: exit status 3",
        "worker 0 (rank 2 on n10) has failed, the others go on: exit status 3",
    ),
    "a connection that is lost, and comes again": (
        STRATEGY,
        play(
            ("come", "chief 0", "ps 1", "worker 0"),
            ("serve", "worker 0"),
            ("lose", "ps 1", "chief 0", "worker 0"),
            ("goes_on",),
            ("come", "chief 0", "worker 0", "ps 1"),
            ("serve", "worker 0"),
            ("end", "chief 0", ""),
        ),
        0,
        "the chief has finished",
        "",
    ),
    "a connection that comes again before it is known to be lost": (
        STRATEGY,
        play(
            ("come", "chief 0", "ps 1"),
            ("come", "chief 0", "ps 1"),
            ("goes_on",),
            ("end", "chief 0", ""),
        ),
        0,
        "the chief has finished",
        "",
    ),
    "a lost connection after the process told how it ends": (
        STRATEGY,
        play(
            ("come", "chief 0", "ps 1"),
            ("lose_after", "chief 0", ""),
        ),
        0,
        "the chief has finished",
        "",
    ),
    "one that is killed after it came again": (
        STRATEGY,
        play(
            ("come", "chief 0", "ps 1"),
            ("lose", "ps 1"),
            ("come", "ps 1"),
            ("end", "ps 1"),
        ),
        1,
        f"ps 1 (rank 2 on n10) is lost, and its variables with it: {KILLED}",
        "",
    ),
    "all workers finish": (
        LEGACY,
        play(
            ("come", "ps 1", "worker 0", "worker 1"),
            ("end", "worker 0", ""),
            ("end", "worker 1", ""),
            ("goes_on",),  # without the one who has not come yet
            ("come", "worker 2"),
            ("end", "worker 2", ""),
        ),
        0,
        "all workers have finished",
        "",
    ),
    "worker 0 fails": (
        LEGACY,
        play(("come", "ps 1", "worker 0", "worker 1"), ("end", "worker 0")),
        1,
        f"worker 0 (rank 2 on n10) has failed: {KILLED}",
        "",
    ),
    "another worker fails": (
        LEGACY,
        play(
            ("come", "ps 1", "worker 0", "worker 1", "worker 2"),
            ("end", "worker 1"),
            ("goes_on",),
            ("end", "worker 2", ""),
            ("end", "worker 0", ""),
        ),
        1,
        f"worker 1 (rank 3 on n11) has failed: {KILLED}",
        "worker 1 (rank 3 on n11) has failed, the others go on",
    ),
    "another worker fails and is started again": (
        LEGACY,
        play(
            ("come", "ps 1", "worker 0", "worker 1", "worker 2"),
            ("end", "worker 1"),
            ("goes_on",),
            ("come", "worker 1"),
            ("end", "worker 1", ""),
            ("end", "worker 2", ""),
            ("end", "worker 0", ""),
        ),
        0,
        "all workers have finished",
        "worker 1 (rank 3 on n11) has failed, the others go on",
    ),
}


@pytest.fixture
def start() -> Iterator[Callable[..., Job]]:
    started = []

    def one(
        jobs: Sequence[str],
        timeout: float = 60.0,
        limits: Limits = LIMITS,
        grace: Optional[int] = None,
    ) -> Job:
        started.append(Job(jobs, timeout, limits, grace))
        return started[-1]

    yield one
    for job in started:
        job.close()


@pytest.mark.parametrize("case", CASES)
def test_how_a_job_ends_is_told_to_all(
    start: Callable[..., Job], case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs, steps, status, told, written = CASES[case]
    job = start(jobs)
    steps(job)
    for line in job.lines.values():
        heard = line.hear()
        assert heard is not None
        assert heard["status"] == status
        assert heard["message"].startswith(told)
        assert line.hear() is None
    job.close()
    verdict = job.monitor.wait()
    assert verdict.status == status
    assert verdict.message.startswith(told)
    errors = capsys.readouterr().err
    assert written in errors
    assert bool(written) == bool(errors)


# who comes; what is told after the timeout
NEVER: Dict[str, Tuple[List[str], List[str], str]] = {
    "nobody": (
        STRATEGY,
        [],
        "chief 0 (rank 0 on n8), ps 1 (rank 2 on n10) did not come within 0.3 s",
    ),
    "no chief": (
        STRATEGY,
        ["ps 1", "worker 0", "worker 1"],
        "chief 0 (rank 0 on n8) did not come",
    ),
    "one ps short": (STRATEGY, ["chief 0", "worker 0"], "ps 1 (rank 2 on n10) did not come"),
    "no data worker": (
        DATA,
        ["worker 0", "worker 1", "data_worker 0"],
        "data_worker 1 (rank 1 on n9) did not come",
    ),
    "no worker 0": (LEGACY, ["ps 1", "worker 1"], "worker 0 (rank 2 on n10) did not come"),
}


@pytest.mark.parametrize("case", NEVER)
def test_who_never_comes_is_named(start: Callable[..., Job], case: str) -> None:
    jobs, come, told = NEVER[case]
    job = start(jobs, timeout=0.3)
    job.come(*come)
    verdict = job.monitor.wait() if not come else job.lines[come[0]].hear()
    assert told in str(verdict)
    job.close()
    assert job.monitor.wait().status == 1


def test_a_worker_that_never_comes_is_named_when_the_others_are_done(
    start: Callable[..., Job],
) -> None:
    job = start(LEGACY, timeout=1.0)
    job.come("ps 1", "worker 0", "worker 1")
    job.end("worker 0", "")
    job.end("worker 1", "")
    job.lines["ps 1"].hear()
    job.close()
    assert job.monitor.wait() == (1, "worker 2 (rank 4 on n12) did not come within 1 s")


# what a stranger says
STRANGERS: Dict[str, bytes] = {
    "a browser": b"GET / HTTP/1.1\r\nHost: n9\r\n\r\n",
    "no object": GREETING + frame([1, 2]),
    "much": b"x" * 100_000,
    "deep": GREETING + struct.pack("!I", 4000) + b"[" * 4000,
    "bytes": bytes(range(256)) + b"\n",
    "the greeting of another version": b"slurm_resolver meeting 1\n" + frame({"rank": 0}),
    "nothing": b"",
}
IMPOSTORS: Dict[str, Dict[str, Any]] = {
    "of another step": {"identity": ["42.1.None", "x"]},
    "without a step": {"identity": None},
    "without a rank": {"rank": None},
    "a rank that is none": {"rank": 77},
    "the monitor": {"rank": 1},
    "without a process": {"process": None},
}


def test_strangers_are_turned_away(start: Callable[..., Job]) -> None:
    job = start(STRATEGY, limits=LIMITS._replace(handshake_seconds=0.5))
    job.come("ps 1")
    for text in STRANGERS.values():
        with socket.create_connection(("127.0.0.1", job.address.port), timeout=20) as stranger:
            with contextlib.suppress(OSError):
                stranger.sendall(text)
            assert set(read_frame(stranger) or ()) <= {"challenge", "offer"}, text
            assert read_frame(stranger) is None, text
    for changes in IMPOSTORS.values():
        line = FakeTask(job.address, 0, **changes)
        assert line.hear() is None, changes
        line.close()
    job.come("chief 0")
    job.end("chief 0", "")
    assert job.lines["ps 1"].hear() == {"status": 0, "message": "the chief has finished"}


def test_one_whose_connection_is_lost_for_longer_than_the_grace(start: Callable[..., Job]) -> None:
    job = start(STRATEGY, grace=1)
    job.come("chief 0", "ps 1")
    job.lose("ps 1")
    told = "its connection was lost, and it has not come again within 1 s"
    assert job.lines["chief 0"].hear() == {
        "status": 1,
        "message": f"ps 1 (rank 2 on n10) is lost, and its variables with it: {told}",
    }


def test_one_whose_connection_is_lost_when_the_job_ends_is_told(start: Callable[..., Job]) -> None:
    job = start(STRATEGY)
    job.come("chief 0", "ps 1", "worker 0")
    job.serve("worker 0")
    job.lose("ps 1")
    job.goes_on()
    job.end("chief 0", "")
    result = {"status": 0, "message": "the chief has finished"}
    assert job.lines["worker 0"].hear() == result
    job.come("ps 1")
    assert job.lines["ps 1"].hear() == result
    job.close()
    assert job.monitor.wait().status == 0


@pytest.mark.parametrize("away", [False, True])
def test_another_process_as_the_same_task_is_refused(
    start: Callable[..., Job], away: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    job = start(STRATEGY)
    job.come("chief 0", "ps 1")
    if away:
        job.lose("ps 1")
        job.goes_on()
    other = FakeTask(job.address, 2, process="second")
    why = "is another process than the one that acts as this task, and which has not ended"
    told = other.hear()
    assert told is not None
    assert told["refused"].startswith(f"ps 0 (rank 1 on n9) {why}")
    assert other.hear() is None
    other.close()
    assert f"ps 1 (rank 2 on n10) {why}" in capsys.readouterr().err
    job.goes_on()
    if away:
        job.come("ps 1")
    job.end("chief 0", "")
    assert job.lines["ps 1"].hear() == {"status": 0, "message": "the chief has finished"}


def test_another_process_may_come_just_before_the_end_of_the_first_is_known(
    start: Callable[..., Job], capsys: pytest.CaptureFixture[str]
) -> None:
    job = start(STRATEGY)
    job.come("chief 0", "worker 0")
    job.serve("worker 0")
    other = FakeTask(job.address, 3, process="second", serves=True)
    job.end("worker 0")
    assert "welcome" in (other.hear() or ())
    other.close()
    capsys.readouterr()


def test_a_task_with_another_cluster_is_told(
    start: Callable[..., Job], capsys: pytest.CaptureFixture[str]
) -> None:
    job = start(STRATEGY)
    line = FakeTask(job.address, 3, identity=[job.address.identity[0], "another"])
    told = "makes another cluster of this step: all tasks need the same arguments"
    assert line.hear() == {"refused": f"ps 0 (rank 1 on n9) {told}"}
    assert f"worker 0 (rank 3 on n11) {told}" in capsys.readouterr().err
    line.close()
    job.come("chief 0")
    job.end("chief 0", "x")
    assert job.monitor.wait().status == 1


def test_many_tasks(start: Callable[..., Job]) -> None:
    jobs = ["chief 0", "ps 0", *(f"worker {index}" for index in range(900))]
    job = start(jobs)
    lines = [FakeTask(job.address, rank, serves=rank > 0) for rank in range(len(jobs)) if rank != 1]
    for line in lines:
        assert "welcome" in (line.hear() or ())
    lines[0].say(ends="")
    lines[0].close()
    for line in lines[1:]:
        assert line.hear() == {"status": 0, "message": "the chief has finished"}
        line.close()
    assert job.monitor.wait().status == 0


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        monitor = Monitor(address_of(STRATEGY, 1, port), bind_seconds=0.2)
        with pytest.raises(sr.AddressError) as caught:
            monitor.serve(5.0)
    assert f"ps 0 (rank 1 on n9) cannot listen at port {port}: Address already" in str(caught.value)
    assert f"by process {os.getpid()}" in str(caught.value)


# One task of the step as a process of its own.
TASK = """
import os, sys, time
sys.path.insert(0, sys.argv[4])
from slurm_resolver.parameter_server.member import Member
from slurm_resolver.parameter_server.monitor import Monitor
from monitored_jobs import address_of
grace = int(sys.argv[5])
address = address_of(sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), grace)
task = Monitor(address) if address.rank == address.monitor_rank else Member(address, 0.3)
"""
JOINS = """
task._joined.wait(20)
print("joined", flush=True)
"""
TRAINS = JOINS + "time.sleep(60)"
SERVES = """
task.serve(20)
print("joined", flush=True)
verdict = task.wait()
print(verdict.message, file=sys.stderr)
sys.exit(verdict.status)
"""

CHILD_SECONDS = 4

# how it ends; its exit status; what the monitor hears
ENDINGS: Dict[str, Tuple[str, int, str]] = {
    "well": ("", 0, "the chief has finished"),
    "sys.exit()": ("sys.exit()", 0, "the chief has finished"),
    "sys.exit(0)": ("sys.exit(0)", 0, "the chief has finished"),
    "sys.exit(3)": ("sys.exit(3)", 3, "has failed: exit status 3"),
    "sys.exit(text)": ("sys.exit('no data')", 1, "has failed: exit status 1, 'no data'"),
    "a sys.exit that is caught": (
        "try: sys.exit(2)\nexcept SystemExit: pass\n",
        0,
        "the chief has finished",
    ),
    "a sys.exit that a function catches": (
        """
import argparse
def main():
    try: argparse.ArgumentParser().parse_args(['--unknown'])
    except SystemExit as error: return error.code
status = main()
""",
        0,
        "the chief has finished",
    ),
    "a sys.exit that is raised again": (
        "try:\n    try: sys.exit(3)\n    except SystemExit: raise\nfinally: print('done')",
        3,
        "has failed: exit status 3",
    ),
    "a sys.exit in the last function of all": (
        "def main():\n    with open(os.devnull): sys.exit(3)\nmain()",
        3,
        "has failed: exit status 3",
    ),
    "an exception after a sys.exit that is caught": (
        "try: sys.exit(2)\nexcept SystemExit: pass\nraise ValueError('no data')",
        1,
        "has failed: ValueError: no data",
    ),
    "an exception": ("raise ValueError('no data')", 1, "has failed: ValueError: no data"),
    "Ctrl-C": (  # which is ignored where the tests were started in the background
        "import signal; signal.signal(2, signal.default_int_handler); os.kill(os.getpid(), 2)",
        -2,
        "has failed: KeyboardInterrupt",
    ),
    "a signal": ("os.kill(os.getpid(), 9)", -9, f"has failed: {KILLED}"),
    "os._exit": ("os._exit(0)", 0, f"has failed: {KILLED}"),
    "a thread's sys.exit": (
        "import threading; t = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()",
        0,
        "the chief has finished",
    ),
    "killed, with a child that lives on": (
        f"if not os.fork(): time.sleep({CHILD_SECONDS}); os._exit(0)\nos.kill(os.getpid(), 9)",
        -9,
        f"has failed: {KILLED}",
    ),
}


class Process:
    """A task as a process of its own, which runs this code once it has its connection."""

    def __init__(self, address: MonitorAddress, rank: int, code: str, **env: str) -> None:
        jobs = ",".join(f"{task.job} {task.index}" for task in address.tasks)
        arguments = [jobs, str(rank), str(address.port), str(HELPERS), f"{address.grace:g}"]
        self.popen = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", TASK + code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )

    def joins(self) -> None:
        assert self.popen.stdout is not None
        assert self.popen.stdout.readline() == "joined\n"

    def ends(self) -> Tuple[int, str]:
        """The exit status, and what it wrote to the standard error."""
        try:
            errors = self.popen.communicate(timeout=20)[1]
        finally:
            self.popen.kill()
        return self.popen.returncode, errors

    def killed(self) -> None:
        self.popen.kill()
        self.ends()


@pytest.mark.parametrize("case", ENDINGS)
def test_how_a_process_ends(start: Callable[..., Job], case: str) -> None:
    code, status, heard = ENDINGS[case]
    job = start(["chief 0", "ps 0"])
    task = Process(job.address, 0, JOINS + code)
    task.joins()
    began = time.monotonic()
    verdict = job.monitor.wait()
    assert time.monotonic() - began < CHILD_SECONDS
    assert verdict.message.endswith(heard)
    assert verdict.status == int("failed" in heard)
    assert task.ends()[0] == status


def test_sys_exit_is_put_back_unless_others_have_replaced_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exit_status, "_wrapper", None)
    monkeypatch.setattr(sys, "exit", sys.exit)
    original = sys.exit
    for _ in range(2):
        exit_status.record_exit_status()
        exit_status.record_exit_status()
        assert sys.exit is not original
        exit_status.stop_recording()
        assert sys.exit is original
        exit_status.stop_recording()
        assert sys.exit is original
    exit_status.record_exit_status()
    theirs = functools.partial(sys.exit)
    monkeypatch.setattr(sys, "exit", theirs)
    exit_status.stop_recording()
    assert sys.exit is theirs


def free_address(jobs: Sequence[str], grace: Optional[int] = None) -> MonitorAddress:
    return address_of(jobs, 0, free_port(), grace)


def test_a_lost_ps_ends_those_who_serve_and_those_who_train() -> None:
    address = free_address(LEGACY)
    monitor, server = Process(address, 0, SERVES), Process(address, 1, SERVES)
    trainer, victim = Process(address, 2, TRAINS), Process(address, 3, TRAINS)
    for task in (monitor, server, trainer, victim):
        task.joins()
    victim.killed()  # of which the others only take notice
    assert monitor.popen.stderr is not None
    told = monitor.popen.stderr.readline()
    assert f"worker 1 (rank 3 on n11) has failed, the others go on: {KILLED}" in told
    server.killed()
    lost = f"ps 1 (rank 1 on n9) is lost, and its variables with it: {KILLED}"
    assert monitor.ends() == (1, f"{lost}\n")
    whole = f"slurm_resolver: worker 0 (rank 2 on n10): {lost}. This process ends\n"
    assert trainer.ends() == (1, whole)


def test_a_lost_monitor_ends_all() -> None:
    address = free_address(LEGACY)
    server, trainer = Process(address, 1, SERVES), Process(address, 2, TRAINS)
    monitor = Process(address, 0, SERVES)
    server.joins()
    trainer.joins()
    monitor.killed()
    lost = "ps 0 (rank 0 on n8) is lost, and its variables with it: look at its output"
    assert server.ends() == (1, f"{lost}\n")
    whole = f"slurm_resolver: worker 0 (rank 2 on n10): {lost}. This process ends\n"
    assert trainer.ends() == (1, whole)


class Firewall:
    """Stands before a monitor: it passes connections on until it forgets and refuses them."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = free_port()
        self.sockets: List[socket.socket] = []
        self.passed = threading.Semaphore(0)
        self.open()

    def open(self) -> None:
        self.listener = socket.create_server(("", self.port))
        threading.Thread(target=self.accept_all, args=(self.listener,), daemon=True).start()

    def accept_all(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self.target))
                self.sockets += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self.pump, args=pair, daemon=True).start()
                self.passed.release()

    def pump(self, source: socket.socket, target: socket.socket) -> None:
        source.settimeout(0.05)  # a thread that is within recv would keep the connection
        with contextlib.suppress(OSError):
            while True:
                try:
                    received = source.recv(65536)
                except socket.timeout:
                    continue
                if not received:
                    target.shutdown(socket.SHUT_WR)
                    break
                target.sendall(received)

    def refuse(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                reset(sock)
        self.sockets.clear()


@pytest.fixture
def firewall(start: Callable[..., Job]) -> Iterator[Callable[..., Tuple[Job, Firewall]]]:
    walls = []

    def one(jobs: Sequence[str], grace: int) -> Tuple[Job, Firewall]:
        job = start(jobs, grace=grace)
        walls.append(Firewall(job.address.port))
        return job, walls[-1]

    yield one
    for wall in walls:
        wall.refuse()


def test_a_process_comes_again_whose_connection_is_forgotten(
    firewall: Callable[..., Tuple[Job, Firewall]],
) -> None:
    job, wall = firewall(["chief 0", "ps 0", "ps 1"], 60)
    job.come("ps 1")
    address = job.address._replace(port=wall.port, rank=0)
    chief = Process(address, 0, JOINS + "sys.stdin.readline()")
    chief.joins()
    wall.passed.acquire()
    wall.refuse()
    job.goes_on()
    wall.open()
    assert wall.passed.acquire(timeout=30)
    job.goes_on()
    assert chief.popen.stdin is not None
    chief.popen.stdin.write("\n")
    chief.popen.stdin.flush()
    assert job.lines["ps 1"].hear() == {"status": 0, "message": "the chief has finished"}
    assert chief.ends() == (0, "")


def test_a_process_that_ends_while_its_connection_is_lost_tells_so_before(
    firewall: Callable[..., Tuple[Job, Firewall]],
) -> None:
    job, wall = firewall(["chief 0", "ps 0", "ps 1"], 60)
    job.come("ps 1")
    code = JOINS + "sys.stdin.readline(); print('ends', flush=True)"
    chief = Process(job.address._replace(port=wall.port, rank=0), 0, code)
    chief.joins()
    wall.refuse()
    assert chief.popen.stdin is not None
    assert chief.popen.stdout is not None
    chief.popen.stdin.write("\n")
    chief.popen.stdin.flush()
    assert chief.popen.stdout.readline() == "ends\n"
    job.goes_on()
    wall.open()
    assert job.lines["ps 1"].hear() == {"status": 0, "message": "the chief has finished"}
    assert chief.ends() == (0, "")


def test_a_process_whose_monitor_is_out_of_reach_for_longer_than_the_grace(
    firewall: Callable[..., Tuple[Job, Firewall]],
) -> None:
    job, wall = firewall(["chief 0", "ps 0", "ps 1"], 1)
    server = Process(job.address._replace(port=wall.port, rank=2), 2, SERVES)
    server.joins()
    wall.passed.acquire()
    wall.refuse()
    lost = (
        "ps 0 (rank 1 on n9) is lost, and its variables with it: its process has ended, nothing "
        f"listens at 127.0.0.1:{wall.port} any more"
    )
    assert server.ends() == (1, f"{lost}\n")
    assert "did not come" not in job.monitor.wait().message


def test_a_monitor_that_was_started_anew_is_another(
    firewall: Callable[..., Tuple[Job, Firewall]], start: Callable[..., Job]
) -> None:
    jobs = ["chief 0", "ps 0", "ps 1"]
    job, wall = firewall(jobs, 60)
    server = Process(job.address._replace(port=wall.port, rank=2), 2, SERVES)
    server.joins()
    wall.passed.acquire()
    wall.refuse()
    wall.target = start(jobs, grace=60).address.port
    wall.open()
    status, errors = server.ends()
    assert status == 1
    lost = "ps 0 (rank 1 on n9) is lost, and its variables with it: its process has ended, another"
    assert lost in errors


def test_a_limit_on_open_files_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); task.serve(20)"
    jobs = ["chief 0", "ps 0", *(f"worker {index}" for index in range(200))]
    address = address_of(jobs, 1, free_port())
    errors = Process(address, 1, code).ends()[1]
    assert "ps 0 (rank 1 on n9) needs 201 connections, one to each other task, and may " in errors
    assert "the limit on open files (ulimit -Hn) is 64." in errors


def test_a_hub_that_raises_tells_why() -> None:
    address = free_address(LEGACY)
    server = Process(address, 1, SERVES)
    monitor = Process(
        address, 0, "task.serve(20); sys.stdin.readline(); raise OSError('no server')"
    )
    server.joins()
    assert monitor.popen.stdin is not None
    monitor.popen.stdin.write("now\n")
    monitor.popen.stdin.flush()
    lost = "ps 0 (rank 0 on n8) is lost, and its variables with it: OSError: no server"
    assert server.ends() == (1, f"{lost}\n")
    assert monitor.ends()[0] == 1


def test_a_hub_that_never_comes() -> None:
    status, errors = Process(free_address(LEGACY), 1, SERVES.replace("20", "0.5")).ends()
    assert status == 1
    assert "ps 0 (rank 0 on n8) has not come within 0.5 s: nothing answers at 127.0" in errors


def test_a_hub_that_knows_no_secret_is_not_trusted(start: Callable[..., Job]) -> None:
    job = start(["chief 0", "ps 0", "ps 1"])
    secret = {"SLURM_RESOLVER_SECRET": "x" * 16}
    task = Process(job.address._replace(rank=2), 2, SERVES.replace("20", "0.5"), **secret)
    status, errors = task.ends()
    assert status == 1
    told, result = errors.splitlines()
    assert told.startswith("slurm_resolver: ps 1 (rank 2 on n10): ps 0 (rank 1 on n9)")
    assert result.startswith("ps 0 (rank 1 on n9) has not come within 0.5 s: ps 0 (rank 1 on n9)")
    assert "SLURM_RESOLVER_SECRET" in result


def test_who_ends_before_any_hub_is_there_does_not_wait() -> None:
    assert Process(free_address(LEGACY), 2, "").ends() == (0, "")


@pytest.mark.parametrize(
    "jobs", [["worker 0"], ["ps 0"], ["evaluator 0", "ps 0", "worker 0"], ["chief 0", "worker 0"]]
)
def test_who_takes_no_part(jobs: List[str]) -> None:
    assert monitor_address(cluster_of(jobs, 0, 1)) is None
