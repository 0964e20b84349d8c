"""The tasks meet over TCP: all tasks of a step as threads of one process, and strangers."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterator, List, Tuple

import pytest
from frames import GREETING, Link, frame, read_body, read_frame, visit
from free_ports import free_ports
from recorded_steps import Recording, recordings, unknowable
from small_meetings import come, echo, errors, meet, points

import slurm_resolver as sr
from slurm_resolver.cluster import layout_exchange
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.resolve import resolve_step
from slurm_resolver.errors import missed_meeting
from slurm_resolver.rendezvous.handshake import NO_SECRET, Challenge
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.rendezvous.wire import LIMITS, Decoder, WireError, encode
from slurm_resolver.slurm.step import SlurmStep


@pytest.mark.parametrize("tasks", [1, 2, 50])
def test_all_get_the_answer_to_all_notes(port: int, tasks: int) -> None:
    present = points(port, tasks) if tasks > 1 else [points(port, 2)[1]._replace(rank=0)]
    for result in come(present, tasks=tasks):
        assert result() == {"said": [rank * 10 for rank in range(tasks)]}


def test_one_meeting_after_the_other(port: int) -> None:
    """A task may be at the next meeting while others still get the answer of the last one."""
    present = points(port, 20)

    def twenty_times(point: Rendezvous) -> List[Any]:
        return [meet(point, {"says": turn}, echo, 30.0, 20)["said"] for turn in range(20)]

    with ThreadPoolExecutor(len(present)) as pool:
        for said in pool.map(twenty_times, present):
            assert said == [[turn] * 20 for turn in range(20)]


def test_who_is_missing_is_told_to_everybody(port: int) -> None:
    present = points(port, 5)
    del present[3]
    started = time.monotonic()
    told = errors(come(present, timeout=1.0, tasks=5))
    assert time.monotonic() - started < 1.0 + 5.0  # the promise: the timeout plus 5 s
    for message in told:
        assert "1 of 5 tasks are missing at the meeting point" in message
        assert message.count("rank 3") == 1


def test_many_missing_are_counted(port: int) -> None:
    (message,) = errors(come([points(port, 100)[1]], timeout=0.2, tasks=100))
    assert "99 of 100 tasks are missing" in message
    assert "rank 20 and 79 more" in message


def test_a_meeting_point_that_is_not_there(port: int) -> None:
    for message in errors(come([points(port, 3)[0], points(port, 3)[2]], timeout=0.5)):
        assert (
            f"could not reach the meeting point 127.0.0.1:{port} (local rank 0 on node n1) within"
            in message
        )
        assert "Connection refused" in message


FEW_FILES = """
import resource, sys
from slurm_resolver import RendezvousError
from slurm_resolver.rendezvous.barrier import meet
from slurm_resolver.rendezvous.point import Rendezvous
resource.setrlimit(resource.RLIMIT_NOFILE, (14, 14))
point = Rendezvous("127.0.0.1", int(sys.argv[1]), "n1", "7.0", 0, is_host=True)
try:
    meet(point, "x", [f"rank {rank}" for rank in range(30)], {}, lambda notes: {}, 2.0)
except RendezvousError as error:
    print(error)
"""


def test_a_meeting_point_with_too_few_files_blames_no_other_task(port: int) -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", FEW_FILES, str(port)], stdout=subprocess.PIPE, text=True
    )
    try:
        await_listening(port)
        links = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(29)]
        told, _ = host.communicate(timeout=20)
        for link in links:
            link.close()
    finally:
        host.kill()
    assert "tasks are missing at the meeting point" in told
    assert "as rank 0 there could not open a file for each connection" in told
    assert "rank 29" not in told


def test_what_the_meeting_point_decides_against(port: int) -> None:
    def refuse(notes: Dict[int, Any]) -> Dict[str, Any]:
        raise sr.RendezvousError("we disagree")

    assert errors(come(points(port, 3), decide=refuse)) == ["we disagree"] * 3


def test_a_port_that_is_taken(port: int) -> None:
    with socket.create_server(("", port)):
        (message,) = errors(come([points(port, 2)[1]], timeout=0.5, tasks=2))
    assert message.startswith("rank 1 cannot listen at the meeting point")
    assert "address already in use" in message.lower()


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


STRANGERS = {
    "garbage": b"GET / HTTP/1.1\r\n\r\n" * 10,
    "a gigabyte announced": GREETING + struct.pack("!I", 2**30) + b"x" * 100_000,
    "no JSON": GREETING + struct.pack("!I", 3) + b"{{{",
    "no object": GREETING + frame([1]),
    "no proof": GREETING + frame(visit(0, {})),
    "a proof of no text": GREETING + frame({"identity": "7.0:x", "challenge": 1, "proof": 2}),
    "half a message": GREETING + frame({"identity": "7.0:x"})[:-3],
    "nothing": b"",
}


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS)
def test_strangers_are_turned_away_and_learn_nothing(slow_meeting: Any, sent: bytes) -> None:
    port, finish = slow_meeting
    with socket.create_connection(("127.0.0.1", port), timeout=20) as stranger:
        assert set(read_frame(stranger) or ()) == {"challenge", "offer"}
        try:
            stranger.sendall(sent)
            with contextlib.suppress(OSError):  # turned away already
                stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(100) == b""
        except (ConnectionResetError, BrokenPipeError):
            pass  # turned away before all was sent
    assert finish() == [{"said": [0, 10, 20]}] * 3


# what one that has carried out the handshake sends in place of a note
NO_NOTES = {
    "a rank that is none": visit(3, {}),
    "a rank below": visit(-1, {}),
    "a rank of no number": visit("2", {}),
    "a rank that is true": visit(True, {}),
    "no note": visit(2, 1),
    "no visit": {"rank": 2, "seconds": 1, "note": {}},
    "no seconds": visit(2, {}, seconds="1"),
    "seconds below": visit(2, {}, seconds=-1),
    "seconds without end": visit(2, {}, seconds=float("inf")),
}


@pytest.mark.parametrize("sent", NO_NOTES.values(), ids=NO_NOTES)
def test_what_is_no_note_is_turned_away(slow_meeting: Any, sent: Dict[str, Any]) -> None:
    port, finish = slow_meeting
    with socket.create_connection(("127.0.0.1", port), timeout=20) as stranger:
        link = Link(stranger, "7.0:x")
        link.say(sent)
        assert link.hear() is None
    assert finish() == [{"said": [0, 10, 20]}] * 3


SAID_BY_ANOTHER = {
    "without a seal": lambda sent: struct.pack("!I", len(sent) - 20) + sent[20:],
    "with that of another message": lambda sent: sent[:20] + sent[20:].replace(b"2", b"1"),
    "twice": lambda sent: sent + sent,
}


@pytest.mark.parametrize("name", SAID_BY_ANOTHER)
def test_nobody_else_can_speak_over_the_connection_of_a_task(slow_meeting: Any, name: str) -> None:
    """As one could who has passed on the handshake between the two."""
    port, finish = slow_meeting
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        link = Link(connection, "7.0:x")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            link.connection = ours
            link.say(visit(2, {"says": 5}))
            connection.sendall(SAID_BY_ANOTHER[name](theirs.recv(1000)))
        link.connection = connection
        assert name == "twice" or link.hear() is None
        while link.hear():
            pass
    assert finish() == [{"said": [0, 10, 20]}] * 3


def test_nothing_is_taken_that_comes_with_the_proof(slow_meeting: Any) -> None:
    port, finish = slow_meeting
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        add = connection.sendall

        class Eager:
            recv = connection.recv

            def sendall(self, data: bytes) -> None:
                add(data + frame(visit(2, {"says": 5})) if b"proof" in data else data)

        assert Link(Eager(), "7.0:x").answer is None  # type: ignore[arg-type]
    assert finish() == [{"said": [0, 10, 20]}] * 3


def test_who_comes_to_another_meeting_is_turned_away(slow_meeting: Any) -> None:
    port, finish = slow_meeting
    with socket.create_connection(("127.0.0.1", port), timeout=20) as other:
        assert Link(other, "8.0:x").answer is None
    assert finish() == [{"said": [0, 10, 20]}] * 3


def test_a_thousand_that_say_nothing_do_not_keep_the_tasks_out(slow_meeting: Any) -> None:
    port, finish = slow_meeting
    silent = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(1000)]
    try:
        assert finish() == [{"said": [0, 10, 20]}] * 3
    finally:
        for connection in silent:
            connection.close()


def test_a_task_that_came_twice_is_told(slow_meeting: Any) -> None:
    port, finish = slow_meeting
    with socket.create_connection(("127.0.0.1", port), timeout=20) as second:
        link = Link(second, "7.0:x")
        link.say(visit(1, {}, "second"))
        assert "rank 1 came twice" in (link.hear() or {})["error"]
    assert finish() == [{"said": [0, 10, 20]}] * 3


def test_a_task_that_comes_and_ends_is_named_at_once(port: int) -> None:
    """The meeting does not wait until its time is up for one that will not come back."""
    present = points(port, 4)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(meet, p, {"says": 0}, echo, 60.0, 4) for p in present[:2]]
        await_listening(port)
        with socket.create_connection(("127.0.0.1", port), timeout=20) as short:
            link = Link(short, "7.0:x")
            link.say(visit(3, {}))
            assert link.hear() == {"taken": True}
        for message in errors([future.result for future in futures]):
            assert "rank 3 came and ended again" in message


def test_a_meeting_point_that_ends_before_it_answers(port: int) -> None:
    def die(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        challenge = Challenge("7.0:x", NO_SECRET)
        connection.sendall(frame(challenge.message))
        assert connection.recv(len(GREETING), socket.MSG_WAITALL) == GREETING
        connection.sendall(frame(challenge.answer(read_frame(connection) or {})))
        assert challenge.seals is not None
        assert read_body(connection) is not None
        connection.sendall(encode({"taken": True}, challenge.seals.serves))
        connection.close()
        listener.close()

    with socket.create_server(("", port)) as listener:
        thread = threading.Thread(target=die, args=(listener,))
        thread.start()
        (message,) = errors(come([points(port, 2)[0]], timeout=30.0, tasks=2))
        thread.join()
    assert "has ended before it answered rank 0" in message


BY_MEETING = [r for r in recordings() if r.is_step and unknowable(r)]


def host_of(node: str) -> str:
    return f"127.0.1.{int(node[1:]) + 1}"


@pytest.mark.parametrize("recording", BY_MEETING, ids=lambda recording: recording.name)
def test_recorded_steps_whose_layout_no_variable_tells(recording: Recording) -> None:
    """Each recorded task in a thread; every node has a loopback address of its own."""
    steps = [SlurmStep.read(task) for task in recording.tasks]
    port_base = free_ports(len(steps) + 1)
    with ThreadPoolExecutor(len(steps)) as pool:
        layouts = list(
            pool.map(lambda s: layout_exchange.exchange_layout(s, port_base, host_of, 20), steps)
        )
    for layout in layouts:
        assert layout == layouts[0]
        assert layout.source == "rendezvous"
        assert {
            rank: (layout.nodes[layout.node_of[rank]], layout.local_rank_of[rank])
            for rank in range(layout.num_tasks)
        } == recording.truth()
        assert [layout.nodes.index(s.node_name or "") for s in steps] == [s.node_id for s in steps]


# how a task differs, of the four of a step; how many raise an error as the one that is met at, and
# how many as one that has not reached it; whether all came
FAILED_MEETINGS: Dict[str, Tuple[Dict[int, Dict[str, Any]], int, int, bool]] = {
    "the last is missing": ({3: {}}, 1, 0, False),
    "it has come elsewhere": ({3: {"step_id": "77"}}, 1, 1, False),
    "the meeting point is missing": ({1: {}}, 0, 3, False),  # which is on the first node, n0
    "they contradict each other": ({3: {"local_rank": 7}}, 0, 0, True),
}


@pytest.mark.parametrize("name", FAILED_MEETINGS)
def test_the_time_that_is_given_bounds_the_meeting_about_the_layout(name: str) -> None:
    others, hosts, unreached, all_came = FAILED_MEETINGS[name]
    recording = next(r for r in BY_MEETING if r.name.endswith("arbitrary_w"))
    read = [SlurmStep.read(task) for task in recording.tasks]
    steps = [
        s.replace(**others.get(s.rank or 0, {})) for s in read if others.get(s.rank or 0) != {}
    ]
    until = time.monotonic() + (20.0 if all_came else 1.0)
    port_base = free_ports(len(read) + 1)
    options = ClusterOptions(
        port_base=port_base, node_address=host_of, layout="rendezvous", until=until
    )

    def error_of(step: SlurmStep) -> sr.LayoutError:
        with pytest.raises(sr.LayoutError, match="the tasks could not tell each other") as caught:
            resolve_step(step, options)
        return caught.value

    with ThreadPoolExecutor(len(steps)) as pool:
        found = list(pool.map(error_of, steps))
    meetings = [meeting for meeting in map(missed_meeting, found) if meeting is not None]
    assert len(meetings) == (0 if all_came else len(steps))
    assert sum(meeting.is_host for meeting in meetings) == hosts
    assert sum(not meeting.shared for meeting in meetings) == unreached


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"node": "n9"}, "rank 1 runs on 'n9', which SLURM_STEP_NODELIST does not name"),
        ({"local_rank": 1}, "rank 1 has local rank 1 on node n1, but 0 lower ranks are there"),
        ({"node": "n0", "local_rank": 1}, "rank 1 has SLURM_NODEID=1, but rank 0 on the same node"),
        (
            {"node": "n0", "local_rank": 1, "node_id": 0},
            "2 tasks run on node n0, but .* gives it 1",
        ),
    ],
)
def test_reports_that_do_not_fit_together(changes: Dict[str, Any], message: str) -> None:
    notes = {rank: {"node": f"n{rank}", "local_rank": 0, "node_id": rank} for rank in range(2)}
    notes[1].update(changes)
    with pytest.raises(sr.RendezvousError, match=message):
        layout_exchange._layout_from_notes(notes, ["n0", "n1"], [1, 1])


@pytest.mark.parametrize(
    "answer", [{}, {"order": "", "node_of": 1}, {"order": "eA==", "node_of": "eA=="}]
)
def test_an_answer_of_another_version_is_an_error_that_says_so(
    answer: Dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout_exchange, "meet", lambda *arguments: dict(answer))
    task = next(r for r in recordings() if r.name.endswith("arbitrary_w")).tasks[0]
    with pytest.raises(sr.LayoutError, match="in a form that this task cannot read"):
        layout_exchange.exchange_layout(SlurmStep.read(task))


def test_variables_without_a_process_behind_them_do_not_meet() -> None:
    """What a test or a tool copied from a task is an error at once, not a wait for nobody."""
    task = next(r for r in recordings() if r.name.endswith("arbitrary_w")).tasks[0]
    with pytest.raises(sr.UnknownLayoutError):
        sr.resolve(environ=task)


def test_how_to_find_the_layout_is_checked() -> None:
    task = next(r for r in recordings() if r.name.endswith("even_2x2")).tasks[0]
    with pytest.raises(sr.LayoutError, match="layout='guess': expected one of 'auto'"):
        sr.resolve(environ=task, layout="guess")  # type: ignore[arg-type]


def test_messages_before_one_that_is_too_long_are_received() -> None:
    decoder = Decoder(max_bytes=10, greeting=False)
    assert decoder.feed(frame({"a": 1}) + frame({"b": "too long"})) == [{"a": 1}]
    with pytest.raises(WireError, match="a message of"):
        decoder.feed(b"")


def test_the_answer_is_bounded(port: int) -> None:
    limits = LIMITS._replace(answer=200)
    results = come(points(port, 2), 20.0, lambda notes: {"said": "x" * 200}, 2, limits)
    (message,) = errors(results[:1])
    assert "cannot be read: a message of 238 bytes" in message


HOLDS_THE_INTERPRETER = """
import ctypes, sys, time
from slurm_resolver.preflight.startup_deadline import startup_deadline
with startup_deadline(60, "not this one"):
    print("through", flush=True)
with startup_deadline(1, "rank 0 has not started"):
    ctypes.PyDLL(None).sleep(300)  # PyDLL keeps the interpreter's lock, as TensorFlow does
"""


def test_a_start_that_takes_too_long_ends_with_a_message_and_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOLDS_THE_INTERPRETER],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "through\n")
    assert done.stderr.startswith("rank 0 has not started\n")
    assert 'File "<string>", line 7' in done.stderr
    assert "not this one" not in done.stderr
