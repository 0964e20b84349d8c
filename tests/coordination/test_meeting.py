"""The tasks of a step meet. They are local processes that come late, end, fork or lie."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple

import pytest
from captured import Logged, Patch
from kinds import Fields, Strings
from munged import Munged, running_munged

from slurm_resolver.coordination import ServiceAddress, client, secret, wire
from slurm_resolver.errors import RendezvousError

IDENTITY = "42.0 start 0"
KEY = "a secret that nobody guesses"
SERVICE = "the coordination service at 127.0.0.1:{port} (local rank 0 on here)"

# A task connects, reports that, and then runs the code in its argument.
TASK = """
import os, sys, time
from slurm_resolver.timeouts import Timeouts
from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.coordination.client import connect

rank, tasks, port = map(int, sys.argv[1:4])
address = ServiceAddress("127.0.0.1", port, "here", "42.0 start 0", tasks, rank, rank == 0, 3.0)
client = connect(address)

def tell(text):  # in one write, because a task may be killed
    os.write(1, f"{text}\\n".encode())

def gather(timeout=30.0, value=None):
    try:
        values = client.gather("the start", rank if value is None else value, timeout)
        tell([*values.values()])
    except RuntimeError as error:
        tell(error)

until = time.monotonic() + 20 * int(sys.argv[5])
while client._connection is None and not client.refusal and time.monotonic() < until:
    time.sleep(0.01)
tell("connected")
exec(sys.argv[4])
"""


class Task:
    """A process of a task; `ends` returns its output and its errors."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    def ends(self) -> tuple[Strings, Strings]:
        output, errors = self.process.communicate(timeout=60)
        return output.decode().splitlines(), errors.decode().splitlines()

    def says(self) -> Strings:
        output, errors = self.ends()
        assert self.process.returncode <= 0 or "Error" in errors[-1], errors
        return output


class Step:
    """Starts the tasks of a step on one port."""

    def __init__(self, port: int, tasks: int = 3) -> None:
        self.port = port
        self.num_tasks = tasks
        self.secret = {secret.VARIABLE: KEY}
        self.tasks: list[Task] = []

    def start(self, rank: int, body: str, wait: bool = True) -> Task:
        command = [sys.executable, "-c", TASK, *map(str, (rank, self.num_tasks, self.port)), body]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*command, str(int(wait))],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            bufsize=0,  # `communicate` does not return buffered data
            env={**os.environ, **self.secret},
        )
        self.tasks.append(Task(process))
        if wait:
            assert process.stdout is not None
            assert process.stdout.readline() == b"connected\n"
        return self.tasks[-1]


@pytest.fixture
def step(port: int) -> Iterator[Step]:
    made = Step(port)
    yield made
    for task in made.tasks:
        task.process.kill()
        task.process.communicate()


GATHER = "gather()"
# Its node resets all of its connections, as a firewall does: the kernel does so when the process
# ends, and not before, or the task would come back once more.
RESET = """
import socket, struct
from slurm_resolver.coordination.tcp import sockets_at
for number, _ in sockets_at(port):
    linger = struct.pack("ii", 1, 0)
    socket.socket(fileno=os.dup(number)).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
os._exit(1)
"""
# Its network fails for some seconds.
CUT_OFF = """
from slurm_resolver.coordination import client as module
module._PAUSE = 4.0
client._connection.socket.shutdown(2)
lost = []
client.listen("gone", lost.append)
client.wait_for(lambda: lost)
tell(f"rank {lost[0]['gone']}: {lost[0]['why']}")
"""
PATIENT = "gather(None)"
CHILD = "os.close(0), os.close(1), os.close(2), time.sleep(20), os._exit(0)"


def missing(seconds: str) -> str:
    return (
        f"1 of 3 tasks did not reach the start within {seconds}: rank 2. Look at their "
        f"output, and check that all tasks run the same program, and reach {SERVICE}."
    )


class Case(NamedTuple):
    """The code of each task, and the last line of each task."""

    bodies: Sequence[str]
    said: dict[int, str]


CASES = {
    "one comes late": Case(
        ["gather(1.98); time.sleep(4)", "gather(1.98)", "time.sleep(3); gather()"],
        {
            0: missing("2 s"),
            1: missing("2 s"),
            2: missing("2 s"),
        },
    ),
    "one fails while others wait for it without a deadline": Case(
        [PATIENT, PATIENT, "time.sleep(1); raise ValueError('no data')"],
        dict.fromkeys(
            range(2),
            "rank 2 is gone, and cannot take part in the start: ValueError: no data.",
        ),
    ),
    "the serving task is stopped": Case(
        [
            "time.sleep(1); os.kill(os.getpid(), 19)",
            *["time.sleep(1.5); gather(1); os._exit(0)"] * 2,  # a goodbye would wait, too
        ],
        dict.fromkeys(
            (1, 2),
            f"{SERVICE} did not answer within 1 s: it was reached, but its process is stopped, or "
            "its node is silent.",
        ),
    ),
    "a connection is reset": Case(
        [PATIENT, PATIENT, f"time.sleep(1)\n{RESET}"],
        dict.fromkeys(
            range(2),
            "rank 2 is gone, and cannot take part in the start: its connection was reset, and it "
            "has not returned for 1.5 s.",
        ),
    ),
    "one returns too late": Case(
        [f"{PATIENT}; time.sleep(5)", PATIENT, CUT_OFF],
        {
            **dict.fromkeys(
                range(2),
                "rank 2 is gone, and cannot take part in the start: its process has ended.",
            ),
            2: f"rank 2: {SERVICE} refuses this process: it has given up this task "
            "(its process has ended).",
        },
    ),
    "one fails while another one is cut off": Case(
        [
            "time.sleep(5)",
            "time.sleep(0.6); raise ValueError('no data')",
            CUT_OFF.replace("4.0", "1.2"),
        ],
        {2: "rank 1: ValueError: no data"},
    ),
    "the serving task has ended": Case(
        ["time.sleep(1)", *[f"time.sleep(3); {PATIENT}"] * 2],
        dict.fromkeys(
            (1, 2), f"{SERVICE} is gone, and cannot take part in the start: it has ended."
        ),
    ),
    "the connections of the service are reset": Case(
        [f"time.sleep(1)\n{RESET}", PATIENT, PATIENT],
        dict.fromkeys(
            (1, 2),
            f"{SERVICE} is gone, and cannot take part in the start: it has not answered for 3 s: "
            "[Errno 111] Connection refused at 127.0.0.1.",
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_gather_comes_to(step: Step, name: str) -> None:
    case = CASES[name]
    tasks = [
        step.start(rank, f"sys.stdin.readline()\n{body}") for rank, body in enumerate(case.bodies)
    ]
    for task in tasks:  # all begin together, however long each took to start
        task.go()
    for rank, said in case.said.items():
        assert tasks[rank].says()[-1] == said.format(port=step.port)


def test_another_secret_is_named(step: Step) -> None:
    step.num_tasks = 2
    serving = step.start(0, "gather(2)")
    step.secret = {secret.VARIABLE: "another secret, as long"}
    other = step.start(1, "gather()")
    (told,) = other.says()
    assert told.startswith(
        f"{SERVICE.format(port=step.port)} refuses this process: it has another secret, of the "
        "kind 'SLURM_RESOLVER_SECRET'. "
    )
    (told,) = serving.says()
    assert told.startswith("1 of 2 tasks did not reach the start within 2 s: rank 1. ")


def test_a_look_up_that_takes_long(step: Step, environ: Patch) -> None:
    """It takes none of the time of the handshake, and a task that returns needs no other one."""
    looked_up = []
    look_up = socket.getaddrinfo

    def look_up_slowly(host: str, *how: Any, **more: Any) -> Any:
        if host == "localhost":
            looked_up.append(host)
            time.sleep(1)
        return look_up(host, *how, **more)

    environ.setenv(secret.VARIABLE, KEY)
    environ.setattr(wire, "HANDSHAKE_SECONDS", 0.5)
    environ.setattr(socket, "getaddrinfo", look_up_slowly)
    step.num_tasks = 2
    step.start(0, "time.sleep(60)")
    address = ServiceAddress("localhost", step.port, "here", IDENTITY, 2, 1, False)
    for _ in range(2):
        connection, answer = wire.open_connection(address, "1 1")
        connection.socket.close()
        assert "proof" in answer
    assert len(looked_up) == 1


def test_an_equal_value_of_all_tasks_is_sent_once() -> None:
    text = json.dumps(secrets.token_hex(1000))
    values = [text] * 1000 + ["null"]
    packed = wire.pack(values)
    assert wire.unpack(packed) == [json.loads(value) for value in values]
    assert len(packed) < 2 * len(text)


def test_an_impossible_name_is_told(environ: Patch) -> None:
    """As `--node-address=..cluster` makes it."""
    environ.setenv(secret.VARIABLE, KEY)
    connected = client.connect(ServiceAddress("n1..cluster", 1, "n1", IDENTITY, 2, 1, False))
    with pytest.raises(
        RendezvousError, match=r"did not answer within 0.5 s: .* at n1\.\.cluster\."
    ):
        connected.gather("the start", None, 0.5)
    client.leave_all()


def test_a_child_that_outlives_its_parent_is_not_the_task(step: Step) -> None:
    tasks = [step.start(rank, "sys.stdin.readline(); gather(4)") for rank in range(2)]
    killed = step.start(2, f"os.fork() and os.kill(os.getpid(), 9); {CHILD}")
    killed.process.wait()
    for task in tasks:
        task.go()
    # The kernel resets the connection of a killed process that has not read all.
    why = r"(its process has ended|its connection was reset, .*)\."
    for task in tasks:
        assert re.fullmatch(f"rank 2 is gone, and cannot .* the start: {why}", task.says()[-1])


def test_the_missing_are_reported_while_others_wait(step: Step) -> None:
    first = step.start(0, "Timeouts.first_notice = 1; sys.stdin.readline(); gather(3)")
    second = step.start(1, "sys.stdin.readline(); gather(3)")
    first.go()
    second.go()
    assert first.ends()[1] == ["has waited 1 s for 1 of 3 tasks: rank 2"]
    assert second.ends()[1] == []


def next_line(task: Task) -> str:
    """Returns the next line of a task's log."""
    assert task.process.stderr is not None
    return task.process.stderr.readline().decode()


@pytest.mark.parametrize("stopped", [0, 1], ids=["the service", "another"])
def test_a_shorter_stop_changes_nothing(step: Step, stopped: int) -> None:
    tasks = [step.start(rank, "sys.stdin.readline(); gather(None)") for rank in range(3)]
    tasks[stopped].process.send_signal(signal.SIGSTOP)
    assert next_line(tasks[2]).startswith(f"no answer for 3 s from rank {stopped}")
    tasks[stopped].process.send_signal(signal.SIGCONT)
    assert next_line(tasks[2]) == f"rank {stopped} answers again\n"
    for task in tasks:
        task.go()
    assert [task.says()[-1] for task in tasks] == ["[0, 1, 2]"] * 3


def test_a_second_process_for_a_rank_is_refused(step: Step) -> None:
    step.start(0, "time.sleep(60)")
    for rank in (0, 1):
        first = step.tasks[0] if rank == 0 else step.start(rank, "time.sleep(60)")
        second = step.start(rank, GATHER, wait=False)
        pids = [task.process.pid for task in (first, second)]
        assert second.says()[-1] == (
            f"{SERVICE.format(port=step.port)} refuses this process: rank {rank} is represented by "
            f"process {pids[0]}, which still runs; process {pids[1]} is its child, or a second "
            "program in the task."
        )


def test_programs_one_after_another(step: Step) -> None:
    """A task's second program meets the others' programs, although the first service still runs."""
    step.num_tasks = 2
    first = step.start(0, "gather(); sys.stdin.readline()")
    assert step.start(1, GATHER).says() == ["[0, 1]"]
    second = step.start(1, "gather(value='b')", wait=False)
    time.sleep(0.5)
    first.go()
    assert first.ends() == (["[0, 1]"], [])
    assert step.start(0, "gather(value='a')").says() == ["['a', 'b']"]
    assert second.says()[-1] == "['a', 'b']"


def test_a_forked_child_does_not_keep_the_port(step: Step) -> None:
    step.num_tasks = 2
    for body in (f"gather(); os.fork() or ({CHILD})", GATHER):
        first = step.start(0, body)
        assert step.start(1, GATHER).says() == ["[0, 1]"]
        assert first.says() == ["[0, 1]"]


# The secret


@pytest.fixture
def environ(monkeypatch: Patch) -> Patch:
    monkeypatch.delenv(secret.VARIABLE, raising=False)
    monkeypatch.setenv(secret.MUNGE_SOCKET_VARIABLE, "/nowhere")
    monkeypatch.setattr(secret, "_MUNGE_SECONDS", 2.0)
    return monkeypatch


@pytest.fixture
def munged(environ: Patch) -> Iterator[Munged]:
    with running_munged() as running:
        environ.setenv(secret.MUNGE_SOCKET_VARIABLE, running.socket)
        yield running


def test_munge(environ: Patch, munged: Munged) -> None:
    service = secret.Secret()
    for _ in range(2):  # munged calls the second credential replayed
        secret._keys.clear()
        assert secret.accept_offer(service.offer) == service.key
    service.renew()
    munged.process.send_signal(signal.SIGSTOP)
    assert secret.accept_offer(service.offer) == service.key  # known from before
    with pytest.raises(RendezvousError, match=r"`munge` failed on this node: .*timed out"):
        secret.Secret()


@pytest.mark.parametrize("credential", ["\ud800", b"\xff" * 64], ids=["no text", "of no text"])
def test_a_credential_without_a_key(munged: Munged, credential: str | bytes) -> None:
    if isinstance(credential, bytes):
        credential = munged.munge(credential, os.geteuid())
    with pytest.raises(RendezvousError, match="munge"):
        secret.accept_offer({"key": "new", "credential": credential})


def test_a_short_secret(environ: Patch) -> None:
    environ.setenv(secret.VARIABLE, "short")
    with pytest.raises(RendezvousError, match="SLURM_RESOLVER_SECRET has 5 characters; expected"):
        secret.Secret()


def test_a_task_with_munge_takes_nothing_else(munged: Munged) -> None:
    assert len(secret.accept_offer({})) == 32


@pytest.mark.root
def test_what_munge_says_of_another_user_is_not_the_secret(munged: Munged) -> None:
    theirs = munged.munge(b"0" * 64, uid=65534)
    with pytest.raises(RendezvousError, match="munge credential is another user's"):
        secret.accept_offer({"key": "new", "credential": theirs})


# Strangers


dialed: list[socket.socket] = []


def dial(port: int) -> socket.socket:
    dialed.append(socket.create_connection(("127.0.0.1", port), 10))
    return dialed[-1]


@pytest.fixture(autouse=True)
def _hang_up() -> Iterator[None]:
    yield
    while dialed:
        dialed.pop().close()


def shake(port: int, key: str = KEY, **changes: object) -> Fields:
    """Connects by hand; returns the answer to the handshake, the sent line, and the socket."""
    sock = dial(port)
    lines = sock.makefile("rb")
    greeting = json.loads(lines.readline())
    hello = {
        "rank": 1,
        "process": "1 1",
    }
    hello.update(challenge=secrets.token_hex(16), **changes)
    proof = wire.prove(key.encode(), "task", greeting["challenge"], hello)
    sent = wire.encode({**hello, "proof": proof})
    sock.sendall(sent)
    with lines:
        return {
            "answer": lines.readline(),
            "sent": sent,
            "socket": sock,
        }


def garbage(port: int) -> None:
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\xff\n",
        b"[" * 60000 + b"\n",
        b"null\n",
        b'{"identity": "' + b"x" * 10_000_000,
    ):
        with contextlib.suppress(OSError):
            dial(port).sendall(data)


def replay(port: int) -> None:
    admitted = shake(port, rank=-1)
    assert b"proof" in admitted["answer"]
    sock = dial(port)
    sock.sendall(admitted["sent"])
    with sock.makefile("rb") as lines:
        assert b"challenge" in lines.readline()
        assert b"another secret" in lines.readline()


def odd_values(port: int) -> None:
    values: list[dict[str, object]] = [
        {"rank": 3},
        {"rank": "1"},
        {"key": "another secret"},
    ]
    for changes in values:
        assert b"proof" not in shake(port, **changes)["answer"]  # type: ignore[arg-type]


def crowd(port: int) -> None:
    """Many silent connections, which come again until the service ends."""

    def stay() -> None:
        with contextlib.suppress(OSError):  # refused, or the test has closed it
            while True:
                with contextlib.suppress(ConnectionResetError, TimeoutError), dial(port) as sock:
                    while sock.recv(1000):
                        pass

    for _ in range(200):
        threading.Thread(target=stay, daemon=True).start()


@pytest.mark.parametrize(
    "stranger",
    [
        garbage,
        replay,
        odd_values,
        crowd,
    ],
)
def test_strangers_change_nothing(step: Step, stranger: Callable[[int], None]) -> None:
    step.num_tasks = 2
    serving = step.start(0, "gather()")
    stranger(step.port)
    assert step.start(1, "gather()").says() == ["[0, 1]"]
    assert serving.ends() == (["[0, 1]"], [])
    assert serving.process.returncode == 0


def test_a_service_that_cannot_start_tells_each_task_why(step: Step) -> None:
    step.secret = {secret.VARIABLE: "short"}
    step.num_tasks = 2
    serving = step.start(0, "")
    for _ in range(2):
        assert b"cannot start" in dial(step.port).recv(1000)
    (told,) = step.start(1, GATHER).says()
    why = f"{secret.VARIABLE} has 5 characters; expected"
    service = SERVICE.format(port=step.port)
    assert told.startswith(f"{service} refuses this process: it cannot start: {why}")
    assert serving.ends() == ([], [])


def test_without_a_secret_nobody_else_represents_a_task_that_has_a_program(step: Step) -> None:
    step.secret = {secret.MUNGE_SOCKET_VARIABLE: "/nowhere"}
    step.num_tasks = 2
    tasks = [step.start(rank, "sys.stdin.readline(); gather()") for rank in range(2)]
    stranger = shake(step.port, "")
    assert b"refused" in stranger["answer"]
    stranger["socket"].sendall(b'{"goodbye": "lost"}\n')
    for task in tasks:
        task.go()
    assert [task.says() for task in tasks] == [["[0, 1]"]] * 2


def test_a_stranger_that_holds_the_port_and_drips_ends_the_start(
    port: int, monkeypatch: Patch, caplog: Logged
) -> None:
    monkeypatch.setattr(client, "_PORT_SECONDS", 0.1)
    monkeypatch.setattr(wire, "HANDSHAKE_SECONDS", 0.5)

    def drip(holder: socket.socket) -> None:
        with contextlib.suppress(OSError), holder.accept()[0] as sock:
            while True:
                sock.sendall(b" ")
                time.sleep(0.1)

    with socket.create_server(("", port)) as holder:
        threading.Thread(
            target=drip,
            args=[holder],
            daemon=True,
        ).start()
        address = ServiceAddress("127.0.0.1", port, "here", IDENTITY, 2, 0, True)
        connected = client.connect(address)
        connected.wait_for(lambda: connected.refusal, 60.0)
        problem = f"cannot listen at port {port} of this node: Address already in use"
        assert problem in caplog.text
        assert connected.problem.startswith("another program or another version")
        with pytest.raises(RendezvousError, match=problem):
            connected.gather("the start", None, 60.0)
