"""The local launcher: its tasks, their variables, and its errors."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
from local_run import COMMAND, ended, run
from task_variables import TASK

from slurm_resolver.cli import main
from slurm_resolver.local import IMITATED_SLURM
from slurm_resolver.local.environment import free_ports


def test_output_is_labelled_by_rank() -> None:
    script = "echo $SLURM_PROCID of $SLURM_STEP_NUM_TASKS; echo oops >&2; printf end"
    done = run("run", "-n", "2", "--", "sh", "-c", script)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["0: 0 of 2", "0: end", "1: 1 of 2", "1: end"]
    assert sorted(done.stderr.splitlines()) == ["0: oops", "1: oops"]


def test_labels_are_as_wide_as_the_last_rank() -> None:
    done = run("run", "-n", "11", "--", "sh", "-c", "echo x")
    assert sorted(done.stdout.splitlines())[:2] == [" 0: x", " 1: x"]


def test_each_task_sees_one_cluster() -> None:
    script = "import slurm_resolver as sr; print(sr.resolve({'ps': 1, 'worker': -1}).tf_config())"
    done = run("run", "-n", "3", "--", sys.executable, "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    configs = [eval(line.partition(": ")[2]) for line in done.stdout.splitlines()]
    assert len({str(config["cluster"]) for config in configs}) == 1
    addresses = [a for job in configs[0]["cluster"].values() for a in job]
    assert len(set(addresses)) == 3
    assert all(address.startswith("localhost:") for address in addresses)
    tasks = sorted((c["task"]["type"], c["task"]["index"]) for c in configs)
    assert tasks == [("ps", 0), ("worker", 0), ("worker", 1)]


def test_of_a_step_around_it_only_settings_are_passed_on() -> None:
    around = {**TASK, "SLURM_X": "1", "SLURM_RESOLVER_LAYOUT": "that step's"}
    settings = {"SLURM_RESOLVER_SECRET": "s", "SLURM_RESOLVER_START_TIMEOUT": "9"}
    settings["SLURM_RESOLVER"] = "off"
    environ = {**os.environ, **around, **settings}
    done = run("run", "--", "sh", "-c", "env | grep SLURM", env=environ)
    variables = dict(line[3:].split("=", 1) for line in done.stdout.splitlines())
    assert variables["SLURM_STEP_NODELIST"] == "localhost"
    assert not {"SLURM_X", "SLURM_RESOLVER_LAYOUT", "SLURM_DISTRIBUTION"} & set(variables)
    assert settings.items() <= variables.items()


def test_cpus() -> None:
    script = "echo $SLURM_CPUS_PER_TASK of $SLURM_CPUS_ON_NODE"
    done = run("run", "-n", "2", "--cpus", "3", "--no-label", "--", "sh", "-c", script)
    assert done.stdout == "3 of 6\n" * 2


@pytest.mark.parametrize(
    ("script", "status", "message"),
    [
        ("exit $SLURM_PROCID", 2, "ended with exit status"),
        (
            "[ $SLURM_PROCID = 0 ] && exit 5; exec sleep 60",
            5,
            "task 0 ended with exit status 5",
        ),
        (
            "[ $SLURM_PROCID = 0 ] && kill -SEGV $$; exec sleep 60",
            139,
            "task 0 was ended by SIGS",
        ),
        # one that does not want to end is killed
        ("[ $SLURM_PROCID = 0 ] && exit 4; trap '' TERM; sleep 60; sleep 60", 4, "status 4"),
    ],
)
def test_one_failure_ends_all(
    script: str, status: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run("run", "-n", "3", "--", "sh", "-c", script)
    assert message in done.stderr
    assert done.stderr.startswith("slurm-resolver run: task ")
    if script.startswith("exit"):
        assert done.returncode in (1, 2)  # of the task that ended first; the others do not count
    else:
        assert done.returncode == status


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_tasks_and_what_they_started(
    number: signal.Signals, tmp_path: Path
) -> None:
    script = f"sleep 300 & echo $! > {tmp_path}/$SLURM_PROCID; echo up; wait"
    with subprocess.Popen(
        [*COMMAND, "run", "-n", "2", "--", "sh", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert sorted(process.stdout.readline() for _ in range(2)) == ["0: up\n", "1: up\n"]
        process.send_signal(number)
        assert process.wait(timeout=180) == 128 + number
        assert process.stderr.read() == (f"slurm-resolver run: {number.name}: ending all tasks\n")
    for path in tmp_path.iterdir():
        assert ended(int(path.read_text())), path


def test_the_tasks_end_with_the_launcher_however_it_ends(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/$SLURM_PROCID; echo up; exec sleep 300"
    with subprocess.Popen(
        [*COMMAND, "run", "-n", "2", "--", "sh", "-c", script],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for _ in range(2):
            process.stdout.readline()
        process.kill()
    for path in tmp_path.iterdir():
        assert ended(int(path.read_text())), path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "2"], "no command"),
        (["-n", "0", "--", "true"], "-n 0: expected a number of tasks"),
        (["-n", "9999", "--", "true"], "-n 9999: expected a number of tasks"),
        (["--cpus", "0", "--", "true"], "--cpus 0: expected a number of CPUs"),
        (["--", "no-such-program"], "'no-such-program' is not a program"),
    ],
)
def test_errors(arguments: List[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_reserved_ports_are_free_ones() -> None:
    first = free_ports(3)
    assert len(set(first)) == 3
    with socket.create_server(("", first[0])):
        assert first[0] not in free_ports(3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mem=5G"], "unknown option --mem"),
        (["--wombat"], "unknown option --wombat"),
        (["--cpu-bind=cores"], "unknown option --cpu-bind"),
        (["--nodes=2"], "argument -N/--nodes: invalid choice: '2'"),
        (["--open-mode", "x"], "argument --open-mode: invalid choice"),
        (["--gpus", "a100:2"], "--gpus-per-node: invalid int value: 'a100:2'"),
        (["--gpus=2", "--gpus-per-task=1"], "--gpus-per-task: not allowed with argument -G/--gpus"),
        (["--gpu-bind", "map_gpu:1,0"], "'map_gpu:1,0': expected none, closest, single:N"),
        (["--gpu-bind", "single:0"], "'single:0': expected none, closest, single:N or per_task:N"),
        (["--requeue-exit", "0"], "--requeue-exit: '0': expected exit statuses from 1 to 255"),
        (["--requeue-exit", "x"], "--requeue-exit: 'x': expected exit statuses"),
        (["--fail-after=nan"], "--fail-after: 'nan': expected seconds from 0 on, and a rank"),
        (["--preempt-after=-1"], "--preempt-after: '-1': expected seconds after the first step"),
        (["--preempt-after", "2:end"], "after the start of the tasks, as 20:start"),
    ],
)
def test_what_cannot_be_read_or_simulated_is_an_error_of_the_command_line(
    arguments: List[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", *arguments, "--", "true"])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-t", "soon"], "--time 'soon': expected minutes, minutes:seconds"),
        (["--signal", "B:USR1@5"], "expected SIGNAL[@SECONDS]"),
        (["--signal", "R:USR1"], "expected SIGNAL[@SECONDS]"),
        (["--signal", "WINCH"], "Slurm does not accept the signal WINCH; expected a number"),
        (["--signal", "99"], "no signal has the number 99"),
        (["--signal", "@5"], "--signal '@5': expected SIGNAL[@SECONDS]"),
        (["--signal", "USR1@70000"], "expected at most 65535 seconds"),
        (["-t", "1", "--signal", "USR1"], "Give fewer seconds (SIGUSR1@30), or a longer time."),
        (["--max-restarts", "-1"], "--max-restarts -1: expected a number of restarts from 0"),
        (["--restarts", "-1"], "--restarts -1: expected a number of restarts from 0"),
        (["--gpus=-1"], "--gpus -1: expected a number of GPUs from 0"),
        (["--gpus-per-task", "9999"], "--gpus-per-task 9999: expected a number of GPUs"),
        (["--fail-after", "2:1"], "--fail-after 2:1: expected a rank from 0 to 0"),
        (["-o", "no/such/folder/%t"], "cannot write to 'no/such/folder/0' (No such file"),
    ],
)
def test_values_that_make_no_sense(
    arguments: List[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments, "--", "true"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("slurm-resolver run: ")
    assert message in captured.err


def test_the_name_and_times_of_the_step() -> None:
    show = "echo $SLURM_JOB_NAME ${SLURM_RESTART_COUNT-none};"
    show += "echo $((SLURM_JOB_END_TIME - SLURM_JOB_START_TIME))"
    options = ["-N1", "-J", "digits", "-t", "1-2:3:4", "--no-label"]
    assert run("run", *options, "--", "sh", "-c", show).stdout == "digits none\n93784\n"
    # without a limit Slurm sets the end of a job of one year
    done = run("run", "-t", "0", "--no-label", "--", "sh", "-c", show)
    assert done.stdout == f"sh none\n{365 * 24 * 60 * 60}\n"


def test_it_says_which_srun_it_imitates() -> None:
    assert f"as srun of Slurm {IMITATED_SLURM}" in run("run", "-V").stdout
    assert f"Slurm {IMITATED_SLURM}" in run("run", "--help").stdout
