"""Faults of a meeting, of strangers, of the wire and of the machine, without Slurm."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any, Callable, Dict, Iterator, List, Tuple

import pytest
from frames import GREETING, Link, frame, read_frame, visit
from small_meetings import come, echo, errors, meet, points

from slurm_resolver.rendezvous import barrier
from slurm_resolver.rendezvous import host as host_module
from slurm_resolver.rendezvous.handshake import Secret
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.rendezvous.server import Server
from slurm_resolver.rendezvous.sockets import listen_at_name
from slurm_resolver.rendezvous.wire import LIMITS


@pytest.fixture
def slow_meeting(port: int) -> Iterator[Tuple[int, Callable[[], List[Dict[str, Any]]]]]:
    """A meeting whose last task comes only when the returned function is called."""
    present = points(port, 3)
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(meet, p, {"says": p.rank * 10}, echo, 30.0) for p in present[:2]]
        await_listening(port)

        def finish() -> List[Dict[str, Any]]:
            futures.append(pool.submit(meet, present[2], {"says": 20}, echo, 30.0))
            return [future.result() for future in futures]

        yield port, finish


def await_listening(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


# what listens at the meeting point's port sends in place of its challenge
NO_CHALLENGES = {
    "half a character": frame({"challenge": "\ud800", "offer": {}}),
    "no text": frame({"challenge": 1, "offer": {}}),
    "no offer": frame({"challenge": "1", "offer": []}),
    "no object": frame([1]),
    "another protocol": b"220 mail ESMTP\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("sent", NO_CHALLENGES.values(), ids=NO_CHALLENGES)
def test_another_program_at_the_port_is_told(
    port: int, sent: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.sendall(sent)
                    connection.recv(1000)

    with socket.create_server(("", port)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        (message,) = errors(come([points(port, 2)[0]], timeout=0.5, tasks=2))
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert message.startswith("rank 0 could not reach the meeting point")
    assert f"Another process has port {port} there" in message
    assert capsys.readouterr().err == ""  # no thread has died of it


def test_two_sockets_that_lack_a_file_at_the_same_time() -> None:
    """Both are ready when no file descriptor is left, and both accept later."""
    listeners = [socket.create_server(("", 0)), socket.create_server(("", 0))]
    ends: List[socket.socket] = []
    server = Server("7.0:x", listeners, 2)
    ports = [listener.getsockname()[1] for listener in listeners]
    ends.extend(socket.create_connection(("127.0.0.1", port), timeout=20) for port in ports)
    with no_files_left():
        assert list(server.events(5)) == []
        assert server.lacks_files
    for end in ends:  # the challenge comes as soon as there are files again
        end.settimeout(0.05)
        for _ in range(100):
            assert list(server.events(0.1)) == []
            with contextlib.suppress(socket.timeout):  # which is no TimeoutError in Python 3.9
                assert end.recv(1)
                break
        else:
            pytest.fail("not accepted")
        end.close()
    server.close()


@contextlib.contextmanager
def no_files_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as last:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno(), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def keep_connecting(port: int, sent: bytes, count: List[int], stop: threading.Event) -> None:
    """Connects again and again from another address, and keeps the last 500."""
    held: List[socket.socket] = []
    while not stop.is_set():
        if len(held) >= 500:
            held.pop(0).close()
        stranger = socket.socket()
        try:
            stranger.settimeout(1)
            stranger.bind(("127.0.0.2", 0))
            stranger.connect(("127.0.0.1", port))
            stranger.sendall(sent)
            held.append(stranger)
            count[0] += 1
        except OSError:
            stranger.close()
            stop.wait(0.01)
    for stranger in held:
        stranger.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n"], ids=["silent", "rubbish"])
def test_a_thousand_that_keep_coming_do_not_keep_a_slow_task_out(port: int, sent: bytes) -> None:
    """A thousand come from another host between the connect of a task and its next step."""
    limits = LIMITS._replace(handshake_seconds=60.0)
    stop, count = threading.Event(), [0]
    with ThreadPoolExecutor(3) as pool:
        present = [points(port, 2)[1]]
        host = pool.submit(meet, present[0], {"says": 10}, echo, 60.0, 2, limits)
        await_listening(port)
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as slow:
                pool.submit(keep_connecting, port, sent, count, stop)
                while count[0] < 1000:
                    time.sleep(0.01)
                link = Link(slow, "7.0:x")
                link.say(visit(0, {"says": 0}))
                assert [link.hear(), link.hear()] == [{"taken": True}, {"here": 1}]
                link.say({"here": 1})
                assert link.hear() == {"answer": {"said": [0, 10]}}
            assert host.result() == {"said": [0, 10]}
        finally:
            stop.set()


def test_an_answer_that_is_taken_slowly_arrives(port: int) -> None:
    """It takes longer than the meeting point waits for a task that reads nothing."""
    text = "x" * 12_000_000

    def read_slowly(link: socket.socket) -> int:
        size = 0
        while True:
            received = link.recv(200_000)
            if not received:
                return size
            size += len(received)
            time.sleep(0.1)

    with ThreadPoolExecutor(2) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_module, "GRACE_SECONDS", 3.0)
        host = pool.submit(meet, points(port, 2)[1], {}, lambda notes: {"said": text}, 60.0, 2)
        await_listening(port)
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
            slow.settimeout(60)
            slow.connect(("127.0.0.1", port))
            link = Link(slow, "7.0:x")
            link.say(visit(0, {}))
            assert [link.hear(), link.hear()] == [{"taken": True}, {"here": 1}]
            link.say({"here": 1})
            assert read_slowly(slow) > len(text)
        assert host.result() == {"said": text}


def node_points(port: int, tasks: int = 4) -> List[Rendezvous]:
    """Two nodes: rank 0 is the meeting point and leads n1, rank 2 leads n2."""
    return [
        Rendezvous("127.0.0.1", port, "n1", "7.0", rank, rank == 0, (), node, rank in (0, 2))
        for rank, node in enumerate(["n1", "n1"] + ["n2"] * (tasks - 2))
    ]


def test_a_node_whose_first_task_has_not_its_name_goes_directly(port: int) -> None:
    """Another process has it, or the tasks have a network namespace each."""
    present = node_points(port)
    with listen_at_name(present[3].node_socket("7.0:x"), 1):
        for result in come(present, tasks=4):
            assert result() == {"said": [0, 10, 20, 30]}


def test_a_large_answer_arrives_through_the_first_task_of_a_node(port: int) -> None:
    for result in come(node_points(port), 60.0, lambda notes: {"said": "x" * 5_000_000}, 4):
        assert len(result()["said"]) == 5_000_000


@pytest.mark.parametrize("other", [1, 2, 3], ids=["host's node", "first task", "through it"])
def test_a_second_process_of_a_task_is_told_and_the_others_go_on(port: int, other: int) -> None:
    """Also where the two come in different ways. The last task comes when one of them is told."""
    present = node_points(port)
    last = 3 if other == 1 else 1
    second = present[other]._replace(own_node="", leads_node=False)
    now = [*(point for point in present if point.rank != last), second]
    with ThreadPoolExecutor(5) as pool:
        futures = {
            pool.submit(meet, point, {"says": point.rank * 10}, echo, 60.0, 4): point.rank
            for point in now
        }
        (refused,), _ = wait(futures, return_when=FIRST_COMPLETED)
        futures[pool.submit(meet, present[last], {"says": last * 10}, echo, 60.0, 4)] = last
    assert futures.pop(refused) == other
    assert str(refused.exception()) == (
        f"rank {other} came twice: two processes act as this task. Start one a task, with srun."
    )
    for future in futures:
        assert future.result() == {"said": [0, 10, 20, 30]}


def test_a_clock_that_jumps_is_not_looked_at(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    times = itertools.cycle([0.0, 2e9, 1e9, 4e9])
    monkeypatch.setattr(time, "time", lambda: next(times))
    for result in come(node_points(port), tasks=4):
        assert result() == {"said": [0, 10, 20, 30]}


@pytest.mark.parametrize("timeout", [1e9, float("inf")])
def test_who_waits_for_ever_meets(port: int, timeout: float) -> None:
    for result in come(node_points(port), timeout, tasks=4):
        assert result() == {"said": [0, 10, 20, 30]}


def test_a_connection_that_stays_at_the_end_keeps_nobody(
    slow_meeting: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has carried out the handshake, and neither comes nor goes."""
    port, finish = slow_meeting
    with socket.create_connection(("127.0.0.1", port), timeout=20) as silent:
        assert Link(silent, "7.0:x").answer
        assert finish() == [{"said": [0, 10, 20]}] * 3
        assert silent.recv(1) == b""
    assert capsys.readouterr().err == ""


# what one that is of the step, but of another version, sends after its note
ODD_MESSAGES: List[Any] = [
    {"left": [1]},
    {"left": {"a": 1}},
    {"here": {}, "silent": {"a": 1}},
    {"here": True, "silent": [[1], "2", None]},
    {"there": "\ud800"},
    {"refused": [1]},
    {"rank": [], "visit": 1},
    {},
]


@pytest.mark.parametrize("sent", ODD_MESSAGES, ids=str)
def test_odd_messages_of_a_task_end_nothing(
    port: int, sent: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadPoolExecutor(1) as pool:
        host = pool.submit(meet, points(port, 2)[1], {"says": 10}, echo, 60.0, 2)
        await_listening(port)
        with socket.create_connection(("127.0.0.1", port), timeout=20) as odd:
            link = Link(odd, "7.0:x")
            link.say(visit(0, {"says": 0}))
            link.say(sent)
            assert [link.hear(), link.hear()] == [{"taken": True}, {"here": 1}]
            link.say({"here": 1})
            assert link.hear() == {"answer": {"said": [0, 10]}}
        assert host.result() == {"said": [0, 10]}
    assert capsys.readouterr().err == ""


KEY = b"what only the tasks know"


@pytest.fixture
def with_key(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret("a test", KEY, {"means": "a test"})
    monkeypatch.setattr(host_module, "own_secret", lambda identity: secret)
    monkeypatch.setattr(barrier, "key_of_offer", lambda offer, name: KEY)


@pytest.mark.usefixtures("with_key")
def test_who_has_not_the_key_can_neither_join_nor_end_anything(slow_meeting: Any) -> None:
    """It knows job, step and protocol, and even what a task has proved on another connection."""
    port, finish = slow_meeting
    with contextlib.ExitStack() as stack:
        for key in (b"", b"guessed"):
            for _ in range(20):
                stranger = socket.create_connection(("127.0.0.1", port), timeout=20)
                stack.enter_context(stranger)
                link = Link(stranger, "7.0:x", key)
                assert link.answer is None
                with contextlib.suppress(OSError):
                    link.say(visit(2, {"says": 666}, "forged", 0))
        with socket.create_connection(("127.0.0.1", port), timeout=20) as task:
            link = Link(task, "7.0:x", KEY)
            link.say(visit(1, {}, "second"))
            assert "came twice" in (link.hear() or {})["error"]
        assert finish() == [{"said": [0, 10, 20]}] * 3


@pytest.mark.usefixtures("with_key")
@pytest.mark.parametrize("proof", ["", "0" * 64, None])
def test_a_task_takes_no_answer_of_who_has_not_the_key(port: int, proof: Any) -> None:
    """Even one that returns what the task itself has proved."""

    def forge(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.sendall(frame({"challenge": "1", "offer": {}}))
                    connection.recv(len(GREETING), socket.MSG_WAITALL)
                    said = read_frame(connection)
                    own = said["proof"] if said and proof is None else proof
                    connection.sendall(frame({"proof": own}) + frame({"answer": {"said": []}}))
                    connection.recv(1000)

    with socket.create_server(("", port)) as listener:
        thread = threading.Thread(target=forge, args=(listener,))
        thread.start()
        (message,) = errors(come([points(port, 2)[0]], timeout=0.5, tasks=2))
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert "what answers there does not know the step's secret" in message


MANY_TASKS = """
import resource, sys, threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from slurm_resolver.rendezvous.barrier import meet
from slurm_resolver.rendezvous.point import Rendezvous
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 20000))
port, tasks = int(sys.argv[1]), int(sys.argv[2])
point = Rendezvous("127.0.0.1", port, "n1", "7.0", 0, is_host=True)
names = [f"rank {rank}" for rank in range(tasks)]
print(meet(point, "x", names, {}, lambda notes: {"came": len(notes)}, 120.0))
"""


def test_twelve_hundred_connections_with_the_usual_limit_of_files(port: int) -> None:
    """The tasks are connections of this process; none is turned away or has to come again."""
    tasks = 1200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"ulimit -Hn is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    host = subprocess.Popen(
        [sys.executable, "-c", MANY_TASKS, str(port), str(tasks)], stdout=subprocess.PIPE, text=True
    )
    with contextlib.ExitStack() as stack:
        stack.callback(host.kill)
        await_listening(port)
        sockets = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            for _ in range(1, tasks)
        ]
        links = [Link(sock, "7.0:x") for sock in sockets]
        for rank, link in enumerate(links, 1):
            assert link.answer, rank
            link.say(visit(rank, {}))
        for link in links:
            assert [link.hear(), link.hear()] == [{"taken": True}, {"here": 1}]
            link.say({"here": 1})
        assert [link.hear() for link in links] == [{"answer": {"came": tasks}}] * len(links)
        for sock in sockets:
            sock.close()
        told, _ = host.communicate(timeout=60)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert told == "{'came': 1200}\n"
