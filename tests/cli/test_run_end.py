"""How the local launcher's tasks end and start again."""

from __future__ import annotations

import signal
import subprocess
from typing import List

import pytest
from local_run import COMMAND, run

from slurm_resolver.cli import main


@pytest.mark.parametrize("option", ["-K0", "--kill-on-bad-exit=0", "--no-kill-on-bad-exit"])
def test_other_tasks_may_go_on(option: str) -> None:
    script = "[ $SLURM_PROCID = 0 ] && exit 3; sleep 0.5; echo done; exit 1"
    done = run("run", "-n2", option, "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (3, "1: done\n")
    assert done.stderr == (
        "slurm-resolver run: task 0 ended with exit status 3\n"
        "slurm-resolver run: task 1 ended with exit status 1\n"
    )


def test_a_time_limit_ends_all_tasks() -> None:
    script = (
        "trap 'echo told; exit 0' TERM; [ $SLURM_PROCID = 1 ] && kill -STOP $$; sleep 60 & wait"
    )
    done = run("run", "-n2", "-t", "0:01", "--requeue", "--", "sh", "-c", script)
    # 143 as of srun; a stopped task is continued, so that it gets the signal; no restart
    assert (done.returncode, sorted(done.stdout.splitlines())) == (143, ["0: told", "1: told"])
    assert done.stderr == (
        "slurm-resolver run: the time limit of 1 s is reached: ending all tasks\n"
    )


def test_a_signal_is_sent_before_the_time_limit() -> None:
    script = "trap 'echo warned; exit 0' USR1; sleep 60 & wait"
    done = run("run", "-n2", "-t", "1", "--signal", "usr1@58", "--", "sh", "-c", script)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["0: warned", "1: warned"])
    assert (
        done.stderr == "slurm-resolver run: 58 s to the time limit: sending SIGUSR1 to all tasks\n"
    )


def test_a_signal_without_a_limit_says_that_nothing_is_sent() -> None:
    done = run("run", "--signal", "USR1", "--", "true")
    assert done.returncode == 0
    assert "--signal without a time limit (--time) sends nothing" in done.stderr


COUNT = "echo ${SLURM_RESTART_COUNT-first};"


def test_a_task_asks_for_a_restart_by_its_exit_status() -> None:
    script = COUNT + "[ ${SLURM_RESTART_COUNT-0} = 2 ] && exit 0; [ $SLURM_PROCID = 0 ] && exit 75"
    done = run("run", "-n2", "--requeue", "--", "sh", "-c", script + "; exit 0")
    assert done.returncode == 0
    expected = [f"{rank}: {count}" for rank in (0, 1) for count in ("1", "2", "first")]
    assert sorted(done.stdout.splitlines()) == expected
    asked = "task 0 asked for it with exit status 75"
    assert done.stderr == "".join(
        f"slurm-resolver run: restart {number} of at most 5: {asked}\n" for number in (1, 2)
    )


def test_max_restarts() -> None:
    options = ["--requeue", "--max-restarts", "1", "--requeue-exit", "3,4"]
    done = run("run", *options, "--", "sh", "-c", COUNT + "exit 4")
    assert (done.returncode, done.stdout) == (4, "0: first\n0: 1\n")
    assert done.stderr.endswith(
        "not started again: task 0 asked for it with exit status 4, but --max-restarts is 1\n"
    )


def test_without_requeue_or_with_another_status_nothing_is_restarted() -> None:
    assert run("run", "--", "sh", "-c", COUNT + "exit 75").stdout == "0: first\n"
    assert run("run", "--requeue", "--", "sh", "-c", COUNT + "exit 74").stdout == "0: first\n"


def test_a_request_for_a_restart_lets_the_others_finish() -> None:
    """They are about to end as well, and may be saving: SIGTERM comes only after a while."""
    wait = '[ -n "$SLURM_RESTART_COUNT" ] && exit 0; [ $SLURM_PROCID = 0 ] && exit 75;'
    script = wait + "trap 'echo cut off' TERM; sleep 1; echo saved"
    done = run("run", "-n2", "--requeue", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (0, "1: saved\n")


def preempted(*options: str) -> subprocess.Popen[str]:
    """Starts two tasks, and preempts them once both are up."""
    script = COUNT + "[ $SLURM_RESTART_COUNT ] && exit 0; trap 'echo told; exit 1' TERM; echo up;"
    process = subprocess.Popen(
        [*COMMAND, "run", "-n2", *options, "--", "sh", "-c", script + "sleep 60 & wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = sorted(process.stdout.readline() for _ in range(4))
    assert lines == ["0: first\n", "0: up\n", "1: first\n", "1: up\n"]
    process.send_signal(signal.SIGUSR2)
    return process


def test_a_preemption_ends_the_tasks_and_starts_them_again() -> None:
    with preempted("--requeue") as process:
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert sorted(output.splitlines()) == ["0: 1", "0: told", "1: 1", "1: told"]
    assert errors == (
        "slurm-resolver run: preempted: ending all tasks\n"
        "slurm-resolver run: restart 1 of at most 5: the step was preempted\n"
    )


def test_a_preemption_without_requeue_ends_the_tasks() -> None:
    with preempted() as process:
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 143
    assert errors.endswith("not started again: --requeue is not given\n")


def test_preempt_after_concerns_the_first_start_alone() -> None:
    script = COUNT + "[ $SLURM_RESTART_COUNT ] || exec sleep 60"
    done = run("run", "--requeue", "--preempt-after", "0.3", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (0, "0: first\n0: 1\n")


def test_nothing_is_restarted_after_ctrl_c() -> None:
    script = "trap 'exit 75' INT; echo up; sleep 60 & wait"
    with subprocess.Popen(
        [*COMMAND, "run", "-n2", "--requeue", "--", "sh", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for _ in range(2):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")
    assert errors == "slurm-resolver run: SIGINT: ending all tasks\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-t", "soon"], "--time 'soon': expected minutes, minutes:seconds"),
        (
            ["--signal", "B:USR1@5"],
            "the prefix B: cannot be simulated, as there is no batch shell",
        ),
        (
            ["--signal", "R:USR1"],
            "the prefix R: cannot be simulated, as there are no reservations",
        ),
        (
            ["--signal", "WINCH"],
            "Slurm does not accept the signal WINCH; expected a number or one of HUP",
        ),
        (["--signal", "99"], "no signal has the number 99"),
        (["--signal", "@5"], "--signal '@5': expected SIGNAL[@SECONDS]"),
        (["--signal", "USR1@70000"], "expected at most 65535 seconds"),
        (["-t", "1", "--signal", "USR1"], "Give fewer seconds (SIGUSR1@30), or a longer time."),
        (["--requeue-exit", "0"], "--requeue-exit '0': expected exit statuses from 1 to 255"),
        (["--requeue-exit", "x"], "--requeue-exit 'x': expected exit statuses"),
        (["--max-restarts", "-1"], "--max-restarts -1: expected a number of restarts from 0"),
        (["--preempt-after", "-1"], "--preempt-after -1.0: expected seconds, 0 or more"),
        (["-m", "heap"], "--distribution 'heap': expected block, cyclic or plane=SIZE"),
        (["-m", "arbitrary"], "arbitrary needs Slurm"),
        (["--gpu-bind", "map:1"], "--gpu-bind 'map:1': expected none, closest, single:N"),
        (["--gpu-bind", "map_gpu:1,0"], "map_gpu cannot be simulated here. List the GPUs in that"),
        (["--gpu-bind", "verbose,mask_gpu:0x3"], "mask_gpu cannot be simulated here."),
        (["--gpu-bind", "single:0"], "--gpu-bind 'single:0': expected"),
        (["--cpu-bind", "sockets"], "sockets cannot be simulated"),
        (["--cpu-bind", "map_ldom:0,1"], "map_ldom cannot be simulated"),
        (["--cpu-bind", "map_cpu:1,0"], "map_cpu cannot be simulated here, as it is about one"),
        (["--cpu-bind", "v,mask_cpu:0x3"], "Use cores or threads here; on Slurm give this to srun"),
        (["--cpu-bind", "fast"], "--cpu-bind 'fast': expected none, rank, cores"),
        (["-n", "4000", "--cpu-bind", "threads"], "4000 tasks need 4000 CPUs, but this process"),
        (["-o", "no/such/folder/%t"], "cannot write to 'no/such/folder/0' (No such file"),
        (["--chdir", "/no/such"], "--chdir '/no/such' is not a directory"),
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
