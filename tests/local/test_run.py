"""The local launcher: its tasks, their variables, and its errors."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from captured import Captured
from local_run import captured, has_ended, in_step, piped, refused, run_script
from slurm_jobs import wait_for
from task_variables import TASK

from slurm_resolver.local.environment import free_ports


def test_of_a_step_around_it_only_settings_are_passed_on() -> None:
    settings = {"SLURM_RESOLVER_SECRET": "s", "SLURM_RESOLVER_START_TIMEOUT": "9"}
    settings["SLURM_RESOLVER"] = "off"
    done = run_script(
        "",
        "env | grep SLURM",
        env={
            **os.environ,
            **TASK,
            "SLURM_X": "1",
            "SLURM_RESOLVER_LAYOUT": "that step's",
            **settings,
        },
    )
    variables = dict(line[3:].split("=", 1) for line in done.stdout.splitlines())
    assert variables["SLURM_STEP_NODELIST"] == "localhost"
    assert not {"SLURM_X", "SLURM_RESOLVER_LAYOUT", "SLURM_DISTRIBUTION"} & set(variables)
    assert settings.items() <= variables.items()


@pytest.mark.parametrize(
    ("script", "statuses", "message"),
    [
        # the status of the task that ended first
        ("exit $SLURM_PROCID", (1, 2), "ended with exit status"),
        ("[ $SLURM_PROCID = 0 ] && kill -SEGV $$; exec sleep 60", (139,), "task 0 was ended by SI"),
        # a task that ignores SIGTERM is killed
        ("[ $SLURM_PROCID = 0 ] && exit 4; trap '' TERM; sleep 60; sleep 60", (4,), "status 4"),
    ],
)
def test_one_failure_ends_all(script: str, statuses: object, message: str) -> None:
    done = run_script("-n 3", script)
    assert message in done.stderr
    assert done.stderr.startswith("slurm-resolver run: task ")
    assert done.returncode in statuses  # type: ignore[operator]


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGKILL,
    ],
)
def test_a_signal_ends_all_tasks_and_what_they_started(
    number: signal.Signals, tmp_path: Path
) -> None:
    script = f"sleep 300 & echo $! > {tmp_path}/$SLURM_PROCID; echo up; wait"
    if number == signal.SIGKILL:  # it cannot end the children of its tasks
        script = f"echo $$ > {tmp_path}/$SLURM_PROCID; echo up; exec sleep 300"
    with piped(in_step("-n 2", "sh", "-c", script)) as process:
        assert sorted(process.stdout.readline() for _ in range(2)) == ["0: up\n", "1: up\n"]
        process.send_signal(number)
        _, errors = process.communicate(timeout=180)
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert errors == f"slurm-resolver run: {number.name}: ending all tasks\n"
    pids = [int(path.read_text()) for path in tmp_path.iterdir()]
    wait_for(lambda: all(map(has_ended, pids)), 20)


def test_a_user_without_a_name_runs_tasks() -> None:
    """As in a container that runs under another user id than its image knows."""
    nameless = ["unshare", "-U", "--map-user=54321", "--"]
    path = {"PATH": os.environ["PATH"]}
    # Root has no rights there to what belongs to another account.
    if captured([*nameless, sys.executable, "-c", ""]).returncode:
        pytest.skip("this account cannot run Python in a user namespace")
    done = captured(
        [
            *nameless,
            *in_step("-n 2", "sh", "-c", "echo $SLURM_JOB_USER"),
        ],
        0,
        env=path,
    )
    assert sorted(done.stdout.splitlines()) == ["0: 54321", "1: 54321"]
    assert done.stderr == ""


def test_a_folder_that_was_removed_is_named(tmp_path: Path) -> None:
    script = 'rmdir "$PWD"; exec "$@"'
    done = captured(
        [
            "sh",
            "-c",
            script,
            "-",
            *in_step("-n 2", "true"),
        ],
        2,
        cwd=tmp_path,
    )
    (line,) = done.stderr.splitlines()
    assert "the current folder cannot be found (No such file or directory)" in line


def test_reserved_ports_are_free_ones() -> None:
    first = free_ports(3)
    assert len(set(first)) == 3
    with socket.create_server(("", first[0])):
        assert first[0] not in free_ports(3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--mem=5G -- true", "unrecognized arguments: --mem=5G. The tasks run on this machine, wi"),
        ("-p gpu -- true", "unrecognized arguments: -p. The tasks run on this machine, without Sl"),
        ("--gpus a100:2 -- true", "'a100:2': expected a number from 0 to 4096"),
        ("--fail-after=nan -- true", "--fail-after: 'nan': expected seconds, a number from 0 on"),
        ("-n 2", "no command"),
        ("-n 0 -- true", "'0': expected a number from 1 to 4096"),
        ("-- no-such-program", "'no-such-program' is not a program"),
        ("-t soon -- true", "--time 'soon': expected minutes, minutes:seconds"),
        ("--time= -- true", "--time '': expected minutes, minutes:seconds"),
        ("--signal= -- true", "--signal '': expected SIGNAL"),
    ],
)
def test_errors(words: str, message: str, capsys: Captured) -> None:
    assert message in refused(capsys, "run", *words.split())
