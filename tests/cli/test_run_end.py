"""How the local launcher's tasks end and start again."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import List, Tuple

import pytest
from local_run import COMMAND, run


def run_and_signal(
    number: signal.Signals, lines: List[str], *arguments: str
) -> Tuple[int, str, str]:
    """Sends a signal once the tasks have printed these lines; returns how the launcher ends."""
    with subprocess.Popen(
        [*COMMAND, "run", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert sorted(process.stdout.readline().rstrip() for _ in lines) == lines
        process.send_signal(number)
        output, errors = process.communicate(timeout=180)
    return process.returncode, output, errors.replace("slurm-resolver run: ", "")


@pytest.mark.parametrize("option", ["-K0", "--kill-on-bad-exit=0"])
def test_other_tasks_may_continue(option: str, tmp_path: Path) -> None:
    script = f"""
[ $SLURM_PROCID = 0 ] && exit 3
while kill -0 $(cat {tmp_path}/0) 2>/dev/null; do sleep 0.1; done; echo done; exit 1"""
    script = f"echo $$ > {tmp_path}/$SLURM_PROCID; until [ -s {tmp_path}/0 ]; do :; done; {script}"
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
    done = run("run", "--signal", "USR1", "--", "true")
    assert done.returncode == 0
    assert "--signal without a time limit (--time) sends nothing" in done.stderr


def test_sigusr1_goes_to_the_tasks() -> None:
    script = "trap 'echo got; exit 0' USR1; echo up; sleep 60 & wait"
    ended = run_and_signal(signal.SIGUSR1, ["0: up"], "--", "sh", "-c", script)
    assert ended == (0, "0: got\n", "")


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


def test_a_request_for_a_restart_lets_the_others_finish(tmp_path: Path) -> None:
    """They are about to end as well, and may be saving: SIGTERM comes only after a while."""
    wait = '[ -n "$SLURM_RESTART_COUNT" ] && exit 0; [ $SLURM_PROCID = 0 ] && { echo $$ > '
    wait += f"{tmp_path}/0; exit 75; }}; until [ -s {tmp_path}/0 ]; do sleep 0.1; done; "
    script = wait + "trap 'echo cut off' TERM; sleep 1; echo saved"
    done = run("run", "-n2", "--requeue", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (0, "1: saved\n")


@pytest.mark.parametrize(
    ("options", "status", "output", "said"),
    [
        (
            ["--requeue"],
            0,
            ["0: 1", "0: told", "1: 1", "1: told"],
            "restart 1 of at most 5: the step was preempted",
        ),
        ([], 143, ["0: told", "1: told"], "not started again: --requeue is not given"),
    ],
)
def test_a_preemption(options: List[str], status: int, output: List[str], said: str) -> None:
    script = COUNT + "[ $SLURM_RESTART_COUNT ] && exit 0; trap 'echo told; exit 1' TERM; echo up;"
    words = ["-n2", *options, "--", "sh", "-c", script + "sleep 60 & wait"]
    up = ["0: first", "0: up", "1: first", "1: up"]
    ended, printed, errors = run_and_signal(signal.SIGUSR2, up, *words)
    assert (ended, sorted(printed.splitlines())) == (status, output)
    assert errors == f"preempted: ending all tasks\n{said}\n"


TRAINING = """
import os, signal, sys
from slurm_resolver.training_reports import READY, SAVED, report
if "SLURM_RESTART_COUNT" in os.environ:
    sys.exit(print("goes on"))
def save(*_):
    {save}
    sys.exit(75)
{start}
signal.pause() if {waits} else None
"""
HANDLER = "signal.signal(signal.SIGTERM, save); report(READY)"


@pytest.mark.parametrize(
    ("after", "save", "start", "waits", "output", "said"),
    [
        ("0", "report(SAVED)", HANDLER, True, "goes on", ["preempted: ending all tasks"]),
        (
            *("0", "pass", HANDLER, True, "goes on"),
            ["preempted: ending all tasks", "nothing was saved after the preemption"],
        ),
        (
            *("99", "report(SAVED)", HANDLER, False, ""),
            ["not preempted: the tasks ended before --preempt-after"],
        ),
        ("99", "pass", "", False, "", ["not preempted: no task has reported a first step"]),
    ],
    ids=["saved", "not saved", "too late", "no step"],
)
def test_a_planned_preemption_counts_from_the_first_step(
    after: str, save: str, start: str, waits: bool, output: str, said: List[str]
) -> None:
    script = TRAINING.format(save=save, start=start, waits=waits)
    options = ["--requeue", "--preempt-after", after]
    done = run("run", "-n1", *options, "--", sys.executable, "-c", script)
    assert (done.returncode, done.stdout) == (0, f"0: {output}\n" if output else "")
    told = done.stderr.replace("slurm-resolver run: ", "").splitlines()
    assert len(told) == len(said) + bool(output)  # and that it is started again
    for line, wanted in zip(told, said):
        assert line.startswith(wanted)


STEP = "echo $SLURM_JOB_ID.$SLURM_STEP_ID $SLURM_RESTART_COUNT;"


def test_a_new_step_of_the_same_job_after_a_failure() -> None:
    script = STEP + "[ $SLURM_STEP_ID = 1 ] || exec sleep 60"
    options = ["-n2", "--restarts", "1", "--fail-after", "0.5:0"]
    done = run("run", *options, "--", "sh", "-c", script)
    assert done.returncode == 0
    lines = sorted(line.rstrip() for line in done.stdout.splitlines())
    assert [line.partition(".")[2] for line in lines] == ["0", "1", "0", "1"]
    assert len({line[3:].partition(".")[0] for line in lines}) == 1  # the job
    assert done.stderr.splitlines() == [
        "slurm-resolver run: killing task 0 (--fail-after)",
        "slurm-resolver run: task 0 was ended by SIGKILL; ending the other tasks",
        "slurm-resolver run: restart 1 of at most 1 (--restarts): task 0 was ended by SIGKILL",
    ]


@pytest.mark.parametrize(
    ("options", "script", "status", "starts", "said"),
    [
        (["--requeue"], "exit 75", 75, 6, "not started again after 5 restarts: task 0 asked for"),
        (["--requeue"], "exit 74", 74, 1, "task 0 ended with exit status 74"),
        ([], "exit 75", 75, 1, "task 0 ended with exit status 75"),
        # the status of the last start, and the failure of the first
        (
            ["--restarts=2"],
            "exit $((SLURM_STEP_ID + 3))",
            5,
            3,
            "but --restarts is 2. The first failure: task 0 ended with exit status 3 in step 0",
        ),
        (["--restarts=2", "-K0"], "[ $SLURM_STEP_ID = 1 ] || exit 3", 0, 2, "restart 1 of"),
        # asks for a requeue, which is not given
        (["--restarts=2"], "exit 75", 75, 1, "task 0 ended with exit status 75"),
        (
            ["--restarts=1", "--requeue"],
            "[ $SLURM_RESTART_COUNT ] || exit 75; [ $SLURM_STEP_ID = 1 ] || exit 3",
            0,
            3,
            "restart 1 of at most 1 (--restarts): task 0 ended with exit status 3",
        ),
        # the time limit is that of the job
        (["--restarts=9", "-t0:01"], "exec sleep 9", 143, 1, "the time limit of 1 s is"),
    ],
)
def test_restarts(options: List[str], script: str, status: int, starts: int, said: str) -> None:
    done = run("run", *options, "--", "sh", "-c", f"{STEP} {script}")
    assert done.returncode == status
    assert len(re.findall(r"^(?:\d: )?\d+\.\d+\b", done.stdout, re.M)) == starts
    assert said in [line for line in done.stderr.splitlines() if "slurm-resolver run:" in line][-1]


@pytest.mark.parametrize("restart", ["--requeue", "--restarts=3"])
def test_nothing_is_restarted_after_ctrl_c(restart: str) -> None:
    script = "trap 'exit 75' INT; echo up; sleep 60 & wait"
    words = ["-n2", restart, "--", "sh", "-c", script]
    ended = run_and_signal(signal.SIGINT, ["0: up", "1: up"], *words)
    assert ended == (130, "", "SIGINT: ending all tasks\n")
