"""A program that is started again when it is lost: when, how often, and how it all ends."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

from slurm_resolver.parameter_server import restarts
from slurm_resolver.parameter_server.restarts import RestartedProgram

JOB_ENDS = shlex.join(
    [
        sys.executable,
        "-c",
        "from slurm_resolver.parameter_server.restarts import *; tell_job_has_ended()",
    ]
)
COUNT = 'echo "${SLURM_RESOLVER_TASK_RESTART:-first}" >> starts; '
LOST = "slurm_resolver: worker 1 "


@pytest.mark.parametrize(
    ("script", "most", "status", "starts", "said"),
    [
        ("true", 3, 0, ["first"], []),
        (
            "exit 3",
            2,
            3,
            ["first", "1.0 1", "1.0 2"],
            [
                "ended with exit status 3; restart 1 of at most 2 in 0.01 s",
                "ended with exit status 3; restart 2 of at most 2 in 0.02 s",
                "ended with exit status 3; not started again: --restart-workers is 2",
            ],
        ),
        (
            "[[ $SLURM_RESOLVER_TASK_RESTART ]] || kill -KILL $$",
            5,
            0,
            ["first", "1.0 1"],
            ["was ended by SIGKILL; restart 1 of at most 5 in 0.01 s"],
        ),
        (
            "kill -SEGV $$",
            1,
            -signal.SIGSEGV,
            ["first", "1.0 1"],
            ["was ended by SIGSEGV; ", "was"],
        ),
        # what serve() returns where the chief is lost, which the others do not survive
        (f"{JOB_ENDS}; exit 1", 5, 1, ["first"], []),
        # what it has started keeps the pipe open
        ("sleep 5 & exit 0", 5, 0, ["first"], []),
        # a program that closes what it inherits, and has another file of the same number
        (f"exec {JOB_ENDS} 3>f 4>f 5>f 6>f 7>f 8>f 9>f", 5, 0, ["first"], []),
    ],
)
def test_when_it_is_started_again(
    script: str,
    most: int,
    status: int,
    starts: List[str],
    said: List[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(restarts, "_FIRST_PAUSE", 0.01)
    program = RestartedProgram(["bash", "-c", COUNT + script], os.environ, most, "worker 1", "1.0")
    assert program.run() == status
    assert (tmp_path / "starts").read_text().splitlines() == starts
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == len(said)
    for line, text in zip(lines, said):
        assert line.startswith(LOST + text)
    assert not (tmp_path / "f").exists() or (tmp_path / "f").read_bytes() == b""


SUPERVISOR = """
import os, sys
from slurm_resolver.parameter_server.restarts import RestartedProgram, end_alike
end_alike(RestartedProgram(sys.argv[1:], os.environ, 5, "worker 1", "1.0").run())
"""


@pytest.mark.parametrize(
    ("script", "number", "returned"),
    [
        ("trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done", signal.SIGTERM, 7),
        ("echo up; exec sleep 60", signal.SIGTERM, -signal.SIGTERM),
        ("echo up; exec sleep 60", signal.SIGINT, -signal.SIGINT),
        ("trap 'exit 0' USR1; echo up; while :; do sleep 0.05; done", signal.SIGUSR1, 0),
    ],
)
def test_signals_reach_the_program_and_a_task_that_is_to_end_does(
    script: str, number: signal.Signals, returned: int
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, "bash", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, errors) == (returned, "")


# The program runs, and its supervisor does not know yet.
SIGNAL_COMES_EARLY = """
import os, subprocess, time
class SlowPopen(subprocess.Popen):
    def __init__(self, *args, **keywords):
        super().__init__(*args, **keywords)
        while not os.path.exists("up"):
            time.sleep(0.01)
        os.kill(os.getpid(), NUMBER)
subprocess.Popen = SlowPopen
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_that_comes_while_the_program_is_started_reaches_it(
    number: signal.Signals, tmp_path: Path
) -> None:
    name = number.name.replace("SIG", "")
    script = f"trap 'exit 0' {name}; touch up; while :; do sleep 0.05; done"
    early = SIGNAL_COMES_EARLY.replace("NUMBER", str(int(number)))
    done = subprocess.run(
        [sys.executable, "-c", early + SUPERVISOR, "bash", "-c", script],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_pause_ends_with_a_signal() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR.replace("5,", "9,"), "sh", "-c", "exit 4"],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for _ in range(3):  # the third pause is one of 4 s
            process.stderr.readline()
        process.terminate()
        assert process.wait(timeout=60) == 4
        assert process.stderr.read() == ""


def test_the_program_ends_with_the_process_that_slurm_knows() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, "sh", "-c", "echo up; exec sleep 300"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        assert process.stdout.read() == ""  # the program held the other end


def test_without_a_process_that_asks_nothing_is_told(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        status = os.fstat(file.fileno())
        for name in ("", "x", "99999:1:2", f"{file.fileno()}:{status.st_dev}:0", ":", "1"):
            restarts.tell_job_has_ended({"SLURM_RESOLVER_RESULT_FD": name})
    assert (tmp_path / "file").read_bytes() == b""
