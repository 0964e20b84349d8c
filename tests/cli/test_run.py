"""The local launcher: its tasks, their variables, and the options that cannot be simulated."""

from __future__ import annotations

import os
import pty
import re
import signal
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
    done = run("run", "-n", "11", "--", "true")
    assert (done.returncode, done.stdout) == (0, "")
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


def test_variables_of_a_step_around_it_are_not_passed_on() -> None:
    done = run(
        "run", "--", "sh", "-c", "env | grep SLURM", env={**os.environ, **TASK, "SLURM_X": "1"}
    )
    variables = dict(line[3:].split("=", 1) for line in done.stdout.splitlines())
    assert variables["SLURM_STEP_NODELIST"] == "localhost"
    assert "SLURM_X" not in variables
    assert "SLURM_DISTRIBUTION" not in variables


def test_cpus() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    script = "import os; print(*os.sched_getaffinity(0), os.environ['SLURM_CPUS_PER_TASK'])"
    tasks = len(cpus)
    done = run("run", "-n", str(tasks), "--cpus", "1", "--", sys.executable, "-c", script)
    lines = sorted(line.split(": ")[1] for line in done.stdout.splitlines())
    assert lines == sorted(f"{cpu} 1" for cpu in cpus)


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
    import socket

    with socket.create_server(("", first[0])):
        assert first[0] not in free_ports(3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mem", "5G"], "srun's --mem cannot be simulated: this command neither allocates"),
        (["--mem=5G"], "srun's --mem cannot be simulated"),
        (["-wn1"], "srun's -w cannot be simulated: this is one node, localhost."),
        (["-p", "gpu"], "srun's -p cannot be simulated: there is no queue here."),
        (["--mpi=pmix"], "srun's --mpi cannot be simulated: Slurm's daemons and plugins"),
        (["--resv-ports"], "ports are always reserved here"),
        (["--nodes=2"], "argument -N/--nodes: 2: this is one node, localhost."),
        (["-N", "1-2"], "argument -N/--nodes: 1-2: this is one node"),
        (["--input", "all"], "argument -i/--input: all: tasks read nothing here."),
        (["--container-id=x"], "srun's --container-id cannot be simulated: Slurm's daemons and"),
        (["--container-type", "x"], "srun's --container-type cannot be simulated"),
        (["--segment=2"], "srun's --segment cannot be simulated: this is one node, localhost."),
        (["--spread-segments"], "srun's --spread-segments cannot be simulated"),
        (["--external-launcher"], "srun's --external-launcher cannot be simulated"),
        (["--tres-bind=gpu:single:1"], "'gpu:single:1': expected gres/gpu: and what --gpu-bind"),
        (["--oom-kill-step=2"], "argument --oom-kill-step"),
        (["--open-mode", "x"], "argument --open-mode: invalid choice"),
        (["--wombat"], "unknown option --wombat"),
    ],
)
def test_what_cannot_be_simulated_is_an_error_that_says_what_to_do(
    arguments: List[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", *arguments, "--", "true"])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_one_node_and_options_that_change_nothing_are_accepted() -> None:
    done = run("run", "-N1", "--nodes=1-1", "-u", "-i", "none", "--oom-kill-step", "-n2", "true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_name_directory_and_times_of_the_step(tmp_path: Path) -> None:
    show = "echo $SLURM_JOB_NAME $PWD $SLURM_SUBMIT_DIR ${SLURM_RESTART_COUNT-none};"
    show += "echo $((SLURM_JOB_END_TIME - SLURM_JOB_START_TIME))"
    options = ["-J", "digits", "-D", str(tmp_path), "-t", "1-2:3:4", "--no-label"]
    done = run("run", *options, "--", "sh", "-c", show)
    assert done.stdout.splitlines() == [f"digits {tmp_path} {os.getcwd()} none", "93784"]
    # without a limit Slurm tells the end of a job of one year
    show = "echo $((SLURM_JOB_END_TIME - SLURM_JOB_START_TIME))"
    done = run("run", "-t", "0", "--no-label", "--", "sh", "-c", show)
    assert done.stdout == f"{365 * 24 * 60 * 60}\n"


def test_a_relative_program_counts_from_the_tasks_directory(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "here").chmod(0o755)
    assert run("run", "-D", str(tmp_path), "--", "./here").stdout == "0: found\n"
    assert main(["run", "-D", str(tmp_path), "--", "./there"]) == 2
    assert main(["run", "-D", str(tmp_path / "no"), "--", "true"]) == 2


def test_it_says_which_srun_it_imitates() -> None:
    assert f"as srun of Slurm {IMITATED_SLURM}" in run("run", "-V").stdout
    assert f"Slurm {IMITATED_SLURM}" in run("run", "--help").stdout


def started(text: str, tasks: str) -> bool:
    return (
        re.fullmatch(rf"slurm-resolver run: {tasks} started \(job \d+, ports [-\d,]+\)\s*", text)
        is not None
    )


def test_verbose_says_that_the_tasks_have_started() -> None:
    assert started(run("run", "-n3", "-v", "--", "true").stderr, "3 tasks")
    assert started(run("run", "--verbose", "--", "true").stderr, "1 task")


@pytest.mark.parametrize("option", [[], ["-Q"]])
def test_a_terminal_gets_that_line_as_well(option: List[str]) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "run", "-n2", *option, "--", "true"], stdout=subprocess.PIPE, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 1024):
                shown += piece
        except OSError:  # the other side of a terminal is closed
            pass
        os.close(ours)
        assert process.wait(timeout=180) == 0
    assert started(shown.decode(), "2 tasks") == (not option)
