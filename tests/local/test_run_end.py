"""How the local launcher's tasks end and start again."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Callable

import pytest
from captured import Captured, Patch
from kinds import Strings
from local_run import captured, exit_status, in_step, piped, run_script
from slurm_jobs import wait_for

from slurm_resolver.local.job import _Step


@pytest.mark.parametrize("option", ["-K0", "--kill-on-bad-exit=0"])
def test_other_tasks_may_continue(option: str, tmp_path: Path) -> None:
    script = f"""
[ $SLURM_PROCID = 0 ] && exit 3
while kill -0 $(cat {tmp_path}/0) 2>/dev/null; do sleep 0.1; done; echo done; exit 1"""
    script = f"echo $$ > {tmp_path}/$SLURM_PROCID; until [ -s {tmp_path}/0 ]; do :; done; {script}"
    done = run_script(f"-n2 {option}", script)
    assert (done.returncode, done.stdout) == (3, "1: done\n")
    assert done.stderr == (
        "slurm-resolver run: task 0 ended with exit status 3\n"
        "slurm-resolver run: task 1 ended with exit status 1\n"
    )


Ran = tuple[object, Strings, str]
Run = Callable[[str, str], Ran]


@pytest.fixture
def run_ready(monkeypatch: Patch, tmp_path: Path, capfd: Captured) -> Run:
    """Runs a script in two tasks, in this process; returns status, lines of output, and errors.

    The times of the launcher count from when each task has created `ready-RANK`.
    """
    set_timers = _Step._set_timers

    def later(step: _Step, elapsed: float) -> None:
        wait_for(lambda: len(list(tmp_path.glob("ready-[01]"))) == 2)
        set_timers(step, elapsed)

    def run(options: str, script: str) -> Ran:
        status = exit_status("run", "-n2", *options.split(), "--", "sh", "-c", script)
        output, errors = capfd.readouterr()
        return status, sorted(output.splitlines()), errors

    monkeypatch.setattr(_Step, "_set_timers", later)
    monkeypatch.chdir(tmp_path)
    return run


# Rank 1 is stopped, as rank 0 sees, before both are ready.
STOPPED = """\
echo $$ >$SLURM_PROCID
[ $SLURM_PROCID = 0 ] || kill -STOP $$
until grep -q 'State:.T' /proc/$(cat 1)/status; do sleep 0.1; done 2>/dev/null
touch ready-0 ready-1
"""


def test_a_time_limit_ends_all_tasks(run_ready: Run) -> None:
    # srun returns 143, too. A stopped task is continued to get the signal. Nothing restarts.
    assert run_ready(
        "-t 0:01 --requeue --restarts=9",
        f"trap 'echo told; exit 0' TERM; {STOPPED} sleep 60 & wait",
    ) == (
        143,
        ["0: told", "1: told"],
        "slurm-resolver run: the time limit of 1 s is reached: ending all tasks\n",
    )


READY = "touch ready-$SLURM_PROCID;"


def test_a_signal_is_sent_before_the_time_limit(run_ready: Run) -> None:
    assert run_ready(
        "-t 1 --signal usr1@58", f"trap 'echo warned; exit 0' USR1; {READY} sleep 60 & wait"
    ) == (
        0,
        ["0: warned", "1: warned"],
        "slurm-resolver run: 58 s to the time limit: sending SIGUSR1 to all tasks\n",
    )


COUNT = "echo ${SLURM_RESTART_COUNT-first};"
TOLD = ["0: told", "1: told"]


@pytest.mark.parametrize(
    ("number", "options", "act", "status", "output", "said"),
    [
        ("USR1", "", "trap 'echo told; exit 0' USR1", 0, TOLD, ""),
        ("INT", "--requeue", "trap 'exit 75' INT", 130, [], "SIGINT: ending all tasks\n"),
        ("INT", "--restarts=3", "trap 'exit 75' INT", 130, [], "SIGINT: ending all tasks\n"),
        (
            "USR2",
            "--requeue",
            "trap 'echo told; exit 1' TERM",
            0,
            ["0: 1", "0: told", "1: 1", "1: told"],
            "preempted: ending all tasks\nrestart 1 of at most 5: the step was preempted\n",
        ),
        (
            "USR2",
            "",
            "trap 'echo told; exit 1' TERM",
            143,
            TOLD,
            "preempted: ending all tasks\nnot started again: --requeue is not given\n",
        ),
    ],
)
def test_signals_to_the_launcher(
    number: str, options: str, act: str, status: int, output: Strings, said: str
) -> None:
    """SIGUSR1 goes to the tasks, SIGUSR2 means a preemption, and Ctrl-C prevents restarts."""
    script = f"{COUNT} [ $SLURM_RESTART_COUNT ] && exit 0; {act}; echo up; sleep 60 & wait"
    begun = ["0: first", "0: up", "1: first", "1: up"]
    with piped(in_step(f"-n2 {options}", "sh", "-c", script)) as process:
        assert sorted(process.stdout.readline().rstrip() for _ in begun) == begun
        process.send_signal(signal.Signals[f"SIG{number}"])
        printed, errors = process.communicate(timeout=180)
    assert process.returncode == status
    assert sorted(printed.splitlines()) == output
    assert errors.replace("slurm-resolver run: ", "") == said


def test_a_request_for_a_restart_lets_the_others_finish(tmp_path: Path) -> None:
    """The launcher delays SIGTERM, because the other tasks may still be saving."""
    wait = '[ -n "$SLURM_RESTART_COUNT" ] && exit 0; [ $SLURM_PROCID = 0 ] && { echo $$ > '
    wait += f"{tmp_path}/0; exit 75; }}; until [ -s {tmp_path}/0 ]; do sleep 0.1; done; "
    done = run_script(
        "-n2 --requeue",
        wait + "trap 'echo cut off' TERM; sleep 1; echo saved",
    )
    assert (done.returncode, done.stdout) == (0, "1: saved\n")


TRAINING = """
import os, signal, sys
from slurm_resolver.local.run_events import report_first_step
if "SLURM_RESTART_COUNT" in os.environ:
    sys.exit(print("goes on"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
report_first_step()
signal.pause() if {waits} else None
"""


@pytest.mark.parametrize(
    ("after", "waits", "output", "said"),
    [
        ("0", True, "goes on", "preempted: ending all tasks"),
        ("99", False, "", "not preempted: the tasks ended before --preempt-after"),
    ],
)
def test_a_planned_preemption_counts_from_the_first_step(
    after: str, waits: bool, output: str, said: str
) -> None:
    script = TRAINING.format(waits=waits)
    done = captured(
        in_step(f"-n1 --requeue --preempt-after {after}", sys.executable, "-c", script),
    )
    assert (done.returncode, done.stdout) == (0, f"0: {output}\n" if output else "")
    told = done.stderr.replace("slurm-resolver run: ", "").splitlines()
    assert len(told) == 1 + bool(output)  # the last line announces the restart
    assert told[0].startswith(said)


def test_a_first_step_is_reported_from_another_pid_namespace() -> None:
    """A container may have its own: the launcher's process id means another process there."""
    namespace = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if captured([*namespace, sys.executable, "-c", ""]).returncode:
        pytest.skip("this account cannot run Python in a namespace")
    script = TRAINING.format(waits=True)
    options = "-n1 --requeue --preempt-after 0"
    done = captured(in_step(options, *namespace, sys.executable, "-c", script), timeout=60)
    assert (done.returncode, done.stdout) == (0, "0: goes on\n")


STEP = "echo $SLURM_JOB_ID.$SLURM_STEP_ID $SLURM_RESTART_COUNT;"


def test_a_new_step_of_the_same_job_after_a_failure(run_ready: Run) -> None:
    status, lines, errors = run_ready(
        "--restarts 1 --fail-after 0.5", f"{STEP} {READY} [ $SLURM_STEP_ID = 1 ] || exec sleep 60"
    )
    assert status == 0
    assert [line.rstrip().partition(".")[2] for line in lines] == ["0", "1", "0", "1"]
    assert len({line[3:].partition(".")[0] for line in lines}) == 1  # the same job
    assert errors.splitlines() == [
        "slurm-resolver run: killing task 1 (--fail-after)",
        "slurm-resolver run: task 1 was ended by SIGKILL; ending the other tasks",
        "slurm-resolver run: restart 1 of at most 1: task 1 was ended by SIGKILL",
    ]


def test_a_task_that_has_ended_is_not_killed(run_ready: Run) -> None:
    status, _, errors = run_ready(
        "--fail-after 1 -t 0:02", f"{READY} [ $SLURM_PROCID = 1 ] || exec sleep 60"
    )
    assert status == 143
    said = "slurm-resolver run: the time limit of 2 s is reached: ending all tasks"
    assert errors.splitlines() == [said]


def test_too_few_open_files_are_named() -> None:
    command = shlex.join(in_step("-n20", "sleep", "60"))
    done = captured(["sh", "-c", f"ulimit -n 24; {command}"], status=2)
    assert re.search(
        r"^slurm-resolver run: only \d of 20 tasks could be started \(Too many open files\): "
        r"ask for fewer, or raise the limits \(ulimit -n, ulimit -u\)\n$",
        done.stderr,
        re.MULTILINE,
    )


@pytest.mark.parametrize(
    ("options", "script", "status", "starts", "said"),
    [
        ("--requeue", "exit 75", 75, 6, "not started again after 5 restarts: task 0 asked for"),
        ("--requeue", "exit 74", 74, 1, "task 0 ended with exit status 74"),
        ("", "exit 75", 75, 1, "task 0 ended with exit status 75"),
        (
            "--requeue",
            "[ ${SLURM_RESTART_COUNT-0} = 2 ] || exit 75",
            0,
            3,
            "restart 2 of at most 5: task 0 asked for it with exit status 75",
        ),
        # the last start determines the status
        (
            "--restarts=2",
            "exit $((SLURM_STEP_ID + 3))",
            5,
            3,
            "not started again after 2 restarts: task 0 ended with exit status 5",
        ),
        ("--restarts=2 -K0", "[ $SLURM_STEP_ID = 1 ] || exit 3", 0, 2, "restart 1 of"),
        # status 75 asks for a requeue, but there is no --requeue
        ("--restarts=2", "exit 75", 75, 1, "task 0 ended with exit status 75"),
        (
            "--restarts=1 --requeue",
            "[ $SLURM_RESTART_COUNT ] || exit 75; [ $SLURM_STEP_ID = 1 ] || exit 3",
            0,
            3,
            "restart 1 of at most 1: task 0 ended with exit status 3",
        ),
    ],
)
def test_restarts(options: str, script: str, status: int, starts: int, said: str) -> None:
    done = run_script(options, f"{STEP} {script}", status=status)
    assert len(re.findall(r"^(?:\d: )?\d+\.\d+\b", done.stdout, re.M)) == starts
    assert said in [line for line in done.stderr.splitlines() if "slurm-resolver run:" in line][-1]
