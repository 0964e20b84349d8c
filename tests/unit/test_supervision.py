"""What ended a step, on which nodes it may start again, and whether that is worth it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import pytest

from slurm_resolver.cli import main
from slurm_resolver.supervision.policy import (
    PROGRESS_SECONDS,
    Attempt,
    choose,
    give_up_reason,
    healthy_nodes,
    is_lost,
    job_is_ending,
    same_again,
)
from slurm_resolver.supervision.step_output import StepFailure, StepOutput

HEALTHY = ["IDLE", "MIXED", "ALLOCATED", "MIXED+CLOUD", "ALLOCATED+MAINT", "MIXED+REBOOT_REQUESTED"]
UNHEALTHY = [
    "",
    "DOWN",
    "DOWN+NOT_RESPONDING",
    "MIXED+DRAIN",
    "MIXED*",
    "MIXED+NOT_RESPONDING",
    "IDLE+POWERED_DOWN",
    "UNKNOWN",
]


def test_the_states_of_a_node() -> None:
    assert healthy_nodes({state: state for state in (*HEALTHY, *UNHEALTHY)}) == HEALTHY


@pytest.mark.parametrize(
    ("healthy", "suspects", "wanted", "least", "chosen"),
    [
        ("abcd", "", 3, 3, "abc"),
        ("abcd", "b", 3, 3, "acd"),
        ("abc", "b", 3, 3, "abc"),  # better a suspect than nothing
        ("abc", "abc", 3, 1, "abc"),
        ("ab", "", 3, 3, ""),
        ("", "", 1, 1, ""),
    ],
)
def test_the_choice_of_nodes(
    healthy: str, suspects: str, wanted: int, least: int, chosen: str
) -> None:
    assert choose(list(healthy), set(suspects), wanted, least) == tuple(chosen)


def failure(text: str, status: int = 1) -> StepFailure:
    """What a step's output tells; lines of srun and those with `!` are on stderr."""
    output = StepOutput()
    for line in text.strip("\n").split("\n"):
        stderr = line.startswith(("srun:", "!"))
        output.feed("stderr" if stderr else "stdout", line.lstrip("!").encode() + b"\n")
    return output.failure(status)


RAISED = """\
!1: Traceback (most recent call last):
!1:   File "a.py", line 3, in <module>
!1: KeyError: 7
!1:
!1: During handling of the above exception, another exception occurred:
!1:
!1: Traceback (most recent call last):
!1:   File "a.py", line 5, in <module>
!1: my.Failed: no luck
!2: Traceback (most recent call last):
srun: error: n2: task 1: Exited with exit code 1
!1: Exception ignored in: nothing
!2:   File "a.py", line 9, in <module>
!2: UnavailableError: Socket closed
srun: Terminating StepId=1.0
!0: slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-22T11:25:14 ***
srun: error: n3: task 2: Exited with exit code 1
srun: error: n1: task 0: Terminated"""
NODE = """\
srun: error: n3: task 2: Exited with exit code 1
srun: error: Node failure on n1
srun: error: n2: tasks 0-1: Killed"""
CANCELLED = """\
srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
0: slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-22T11:23:48 ***
srun: error: n1: task 0: Killed"""
ENDED_AFTER = """\
srun: error: n1: task 3: Killed
srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
srun: error: n1: task 0: Killed"""
LAUNCH = """\
srun: error: Task launch for StepId=1.1 failed on node n4: Communication connection failure
srun: error: Application launch failed: Communication connection failure
srun: error: n1: task 0: Killed"""
NOT_STARTED = (
    "srun: error: Unable to create step for job 1: Requested node configuration is not available"
)
NO_LABEL = """\
!Traceback (most recent call last):
!  File "a.py", line 3, in <module>
!ValueError: x
srun: error: n2: task 1: Exited with exit code 1"""
OUT_OF_MEMORY = "srun: error: n2: task 1: Out Of Memory"
LAST_LINE = """\
1: on stdout
!1: the reason\x20
!1:
srun: error: n2: tasks 1,3: Exited with exit code 7"""
# text: kind, status, rank, node, signal, line
ENDS: Dict[str, Tuple[object, ...]] = {
    RAISED: ("task", 1, 1, "n2", None, "my.Failed: no luck"),
    NODE: ("node", 1, None, "n1", None, None),
    CANCELLED: ("cancelled", 9, None, None, None, None),
    ENDED_AFTER: ("task", 137, 3, "n1", "SIGKILL", None),
    LAUNCH: ("node", 1, None, "n4", None, "Communication connection failure"),
    NOT_STARTED: ("srun", 9, None, None, None, NOT_STARTED[len("srun: error: ") :]),
    "": ("srun", 9, None, None, None, None),
    NO_LABEL: ("task", 1, 1, "n2", None, "ValueError: x"),
    OUT_OF_MEMORY: ("task", 137, 1, "n2", "SIGKILL (out of memory)", None),
    LAST_LINE: ("task", 7, 1, "n2", None, "the reason"),
    "srun: error: n2: task 1: Segmentation fault (core dumped)": (
        *("task", 139, 1, "n2", "SIGSEGV", None),
    ),
    "srun: error: n2: task 1: Flabbergasted": ("task", 1, 1, "n2", "Flabbergasted", None),
}


@pytest.mark.parametrize("text", ENDS)
def test_who_failed_first(text: str) -> None:
    found = failure(text, 9)
    assert (*(found.kind, found.status, found.rank, found.node), found.signal, found.line) == (
        ENDS[text]
    )


def test_how_a_failure_is_described() -> None:
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(7))
    said = [failure(text, 9)._replace(at=7).describe() for text in (RAISED, NODE, CANCELLED)]
    assert said == [
        f"rank 1 on n2 at {when}, exit status 1: my.Failed: no luck",
        f"node n1 at {when}, node failure",
        f"the step at {when}, cancelled",
    ]


def test_output_in_pieces() -> None:
    output = StepOutput()
    for piece in (b"srun: err", b"or: n1: task 4: Kil", b"led\nsrun: Termina"):
        output.feed("stderr", piece)
    assert output.failed is not None
    assert (output.failed.rank, output.ending) == (4, False)
    output.feed("stderr", b"ting StepId=1.0\n")
    assert output.ending


STEP_7 = RAISED.replace("no luck", "no luck at step 7, 0x7f10, n1:23001, pid 77")
RESUMED = "0: slurm_resolver: training resumes from checkpoints/ckpt-7, saved at {}\n"


@pytest.mark.parametrize(
    ("first", "second", "seconds", "same"),
    [
        (STEP_7, STEP_7, 5.0, True),
        (STEP_7, STEP_7.replace("0x7f10", "0x88").replace(":23001", ":23008"), 5.0, True),
        (STEP_7, STEP_7.replace("step 7", "step 9"), 5.0, False),
        (STEP_7, STEP_7.replace("n2: task 1", "n4: task 1"), 5.0, True),
        (STEP_7, STEP_7, PROGRESS_SECONDS + 1, False),
        (RESUMED.format(7) + STEP_7, RESUMED.format(7) + STEP_7, PROGRESS_SECONDS + 1, True),
        (RESUMED.format(7) + STEP_7, RESUMED.format(8) + STEP_7, 5.0, False),
        (ENDED_AFTER, ENDED_AFTER, 5.0, True),
        (ENDED_AFTER, ENDED_AFTER.replace("task 3", "task 2"), 5.0, False),
        (LAST_LINE, LAST_LINE.replace("code 7", "code 8"), 5.0, False),
        (NODE, NODE, 5.0, False),  # goes on while there are nodes
    ],
)
def test_what_is_the_same_again(first: str, second: str, seconds: float, same: bool) -> None:
    attempts = [Attempt(failure(first), 3.0, "ab"), Attempt(failure(second), seconds, "ab")]
    assert same_again(attempts) == same
    assert not same_again(attempts[:1])


def exited(status: int) -> str:
    """What srun prints of a task that ends with this status."""
    return f"srun: error: n2: task 1: Exited with exit code {status}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CANCELLED, "cancelled"),
        (exited(75), "asks for a requeue"),
        (exited(1), None),
        (NODE, None),
        (NOT_STARTED, None),
    ],
)
def test_failures_after_which_nothing_is_started(text: str, told: Optional[str]) -> None:
    stop = give_up_reason(failure(text))
    assert (stop is not None and told in stop.why) if told else stop is None


RUNNING = {
    "JobState": "RUNNING",
    "Restarts": "1",
    "EndTime": "Unknown",
    "NodeList": "n[1-3]",
    "BatchHost": "n1",
}


@pytest.mark.parametrize(
    ("changed", "told", "requeue"),
    [
        ({}, None, False),
        ({"JobState": "COMPLETING"}, "the job is COMPLETING", False),
        ({"Restarts": "2"}, "requeued", False),
        ({"PreemptTime": "2026-01-01T00:00:00"}, "preempts", True),
        ({"EndTime": "1999-12-31T00:02:00"}, None, False),
        ({"EndTime": "1999-12-31T00:00:59"}, "the time limit comes in 59 s", True),
        ({"NodeList": "n[2-3]"}, "the job has lost n1", True),
    ],
)
def test_a_job_that_is_about_to_end(
    changed: Dict[str, str], told: Optional[str], requeue: bool
) -> None:
    now = time.mktime(time.strptime("1999-12-31T00:00:00", "%Y-%m-%dT%H:%M:%S"))
    stop = job_is_ending({**RUNNING, **changed}, 1, 60, now)
    if told is None:
        assert stop is None
    else:
        assert stop is not None
        assert (told in stop.why, stop.requeue) == (True, requeue)


def test_a_job_without_its_batch_file() -> None:
    lost = {**RUNNING, "NodeList": "n[2-3]"}
    assert is_lost(lost)
    salloc = {**RUNNING, "BatchHost": ""}
    for job in (RUNNING, {**lost, "JobState": "COMPLETING"}, {**lost, "NodeList": ""}, salloc):
        assert not is_lost(job)


SRUN = ["--", "srun", "true"]
REFUSED: List[Tuple[Sequence[str], str]] = [
    (["--nodes=2", "--min-nodes=3", *SRUN], "--min-nodes 3: expected at most --nodes 2"),
    (["--", "python", "train.py"], "'python train.py': expected srun with its options"),
    (["--", "srun"], "'srun': expected srun with its options"),
    (SRUN, "SLURM_JOB_ID is not set"),
]


@pytest.mark.parametrize(("words", "told"), REFUSED)
def test_what_supervise_refuses(
    words: Sequence[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["supervise", *words]) == 2
    assert told in capsys.readouterr().err
