"""The failure that ended a step, the nodes for a restart, and whether it is worthwhile."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from captured import Captured, Patch
from kinds import Texts
from local_run import refused

from slurm_resolver.supervision import policy
from slurm_resolver.supervision.policy import (
    PROGRESS_SECONDS,
    NoRestartError,
    same_again,
    stop_if_job_ends,
)
from slurm_resolver.supervision.step import StepFailure, StepOutput
from slurm_resolver.supervision.supervisor import Supervisor

HEALTHY = [
    "IDLE",
    "MIXED",
    "ALLOCATED",
    "MIXED+CLOUD",
    "ALLOCATED+MAINT",
    "MIXED+REBOOT_REQUESTED",
]
UNHEALTHY = [
    "DOWN+NOT_RESPONDING",
    "MIXED+DRAIN",
    "MIXED*",
    "IDLE+POWERED_DOWN",
    "UNKNOWN",
]


def test_the_states_of_a_node() -> None:
    assert [*filter(policy.UNHEALTHY.search, HEALTHY + UNHEALTHY)] == UNHEALTHY


@pytest.mark.parametrize(
    ("healthy", "suspects", "wanted", "least", "chosen"),
    [
        ("abcd", "", 3, 3, "abc"),
        ("abcd", "b", 3, 3, "acd"),
        ("abc", "b", 3, 3, "abc"),  # a suspect node is better than none
        ("abc", "abc", 3, 1, "abc"),
    ],
)
def test_the_choice_of_nodes(
    healthy: str, suspects: str, wanted: int, least: int, chosen: str
) -> None:
    supervisor: Any = SimpleNamespace(
        _healthy=list(healthy),
        _suspects=set(suspects),
        _options=SimpleNamespace(min_nodes=least, nodes=wanted),
    )
    assert Supervisor._choose(supervisor, wanted) == list(chosen)


def failure(text: str, status: int = 1) -> StepFailure:
    """Returns the failure in the standard error of a step."""
    output = StepOutput()
    output.feed(text.encode())
    output.status = status
    return output.failure()


RAISED = """\
1: bar 1/2\rTraceback (most recent call last):
1:   File "a.py", line 3, in <module>
1: KeyError: 7
1:
1: During handling of the above exception, another exception occurred:
1:
1: Traceback (most recent call last):
1:   File "a.py", line 5, in <module>
1: my.Failed: no luck
2: Traceback (most recent call last):
srun: error: n2: task 1: Exited with exit code 1
1: Exception ignored in: nothing
2:   File "a.py", line 9, in <module>
2: UnavailableError: Socket closed
srun: Terminating StepId=1.0
0: slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-22T11:25:14 ***
srun: error: n3: task 2: Exited with exit code 1
srun: error: n1: task 0: Terminated"""
NODE = """\
srun: error: n3: task 2: Exited with exit code 1
srun: error: Node failure on n1
srun: error: n2: tasks 0-1: Killed"""
KILLED = """\
srun: error: n1: task 3: Killed
srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
srun: error: n1: task 0: Killed"""
# The kind and the status of a failure, what failed first, and below it the output. srun may report
# rank 0 first, although it has only lost another task.
OUTPUTS = """\
srun 9 srun at TIME, exit status 9

srun 9 srun at TIME, exit status 9: srun: error: Unable to create step for job 1: Requested node
srun: error: Unable to create step for job 1: Requested node

refused 9 srun at TIME, exit status 9: srun: error: Unable to create step for job 1: Invalid GRES
srun: error: Unable to create step for job 1: Invalid GRES

refused 9 srun at TIME, exit status 9: srun: error: Unable to create step for job 8: Invalid feature
srun: error: Unable to create step for job 8: Invalid feature

refused 9 srun at TIME, exit status 9: /usr/bin/srun: unrecognized option '--nosuch'
/usr/bin/srun: unrecognized option '--nosuch'
Try "srun --help" for more information

refused 9 srun at TIME, exit status 9: srun: fatal: --mem and --mem-per-cpu are mutually exclusive.
srun: fatal: --mem and --mem-per-cpu are mutually exclusive.

refused 1 srun at TIME, Unable to satisfy cpu bind request
srun: error: CPU binding outside of job step allocation, allocated CPUs are: 0x00F0.
srun: error: Task launch for StepId=1.1 failed on node n4: Unable to satisfy cpu bind request

task 1 rank 1 on n2 at TIME, Exited with exit code 1: ValueError: x
Traceback (most recent call last):
  File "a.py", line 3, in <module>
ValueError: x
srun: error: n2: task 1: Exited with exit code 1

task 7 rank 4 at TIME, Exited with exit code 7
srun: error: n[2-3]: tasks 4-7: Exited with exit code 7

task 137 rank 1 on n2 at TIME, Out Of Memory
srun: error: n2: task 1: Out Of Memory

task 139 rank 1 on n2 at TIME, Segmentation fault (core dumped)
srun: error: n2: task 1: Segmentation fault (core dumped)

saved 75 rank 1 on n2 at TIME, Exited with exit code 75
srun: error: n2: task 1: Exited with exit code 75

task 137 rank 1 on n2 at TIME, Killed
 50%|#####     | 50/100 [00:10<00:10,  5.00it/s]srun: error: n2: task 1: Killed
srun: Terminating StepId=1.0

task 143 rank 1 on n2 at TIME, Terminated
srun: error: n2: task 1: Terminated

task 5 rank 3 on n4 at TIME, Exited with exit code 5: ValueError: x
0: Traceback (most recent call last):
0: tensorflow.python.framework.errors_impl.UnavailableError: Socket closed
3: Traceback (most recent call last):
3: ValueError: x
srun: error: n1: task 0: Exited with exit code 1
srun: Terminating StepId=1.0
srun: error: n4: tasks 2-3: Exited with exit code 5

task 137 rank 1 on n2 at TIME, Killed
Traceback (most recent call last):
tensorflow.python.framework.errors_impl.UnavailableError: Socket closed
srun: error: n1: task 0: Exited with exit code 1
srun: error: n2: task 1: Killed

task 137 rank 1 on n2 at TIME, Killed
srun: error: n2: task 1: Killed
srun: Terminating StepId=1.0
Traceback (most recent call last):
tensorflow.python.framework.errors_impl.UnavailableError: Socket closed
srun: error: n1: task 0: Exited with exit code 1

task 135 rank 1 on n2 at TIME, Bus error
srun: error: n1: task 0: Exited with exit code 1
srun: error: n2: task 1: Bus error

saved 75 rank 0 on n1 at TIME, Exited with exit code 75
srun: error: n1: task 0: Exited with exit code 75
srun: error: n2: task 1: Bus error

task 139 rank 1 on n2 at TIME, Segmentation fault (core dumped)
0: Traceback (most recent call last):
0: tensorflow.python.framework.errors_impl.UnavailableError: Socket closed
srun: error: n1: task 0: Exited with exit code 1
srun: Terminating StepId=1.0
srun: error: n2: task 1: Segmentation fault (core dumped)

task 1 rank 3 on n4 at TIME, it does not answer TensorFlow
0: my.FitError: worker 3 (rank 3 on n4) is gone in step 7 of epoch 0: it does not answer TensorFlow
0: Traceback (most recent call last):
0: my.FitError: worker 3 (rank 3 on n4) is gone in step 7 of epoch 0: it does not answer TensorFlow
srun: error: n1: task 0: Exited with exit code 1
srun: Terminating StepId=1.0
srun: error: n4: task 3: Killed

cancelled 9 the step at TIME, cancelled
srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
0: slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-22T11:23:48 ***
srun: error: n1: task 0: Killed

node 1 node n4 at TIME, Communication connection failure
srun: error: Task launch for StepId=1.1 failed on node n4: Communication connection failure
srun: error: Application launch failed: Communication connection failure
srun: error: n1: task 0: Killed

cancelled 9 the step at TIME, cancelled
srun: Job step aborted
srun: error: n2: task 1: Segmentation fault"""
ENDS = {
    RAISED: "task 1 rank 1 on n2 at TIME, Exited with exit code 1: my.Failed: no luck",
    NODE: "node 1 node n1 at TIME, node failure",
    KILLED: "task 137 rank 3 on n1 at TIME, Killed",
}
for block in OUTPUTS.split("\n\n"):
    told, _, output = block.partition("\n")
    ENDS[output] = told


@pytest.mark.parametrize("text", ENDS)
def test_who_failed_first(text: str) -> None:
    found = failure(text, 9)
    who = re.sub(r"\d{4}-\d\d-\d\dT[\d:]{8}", "TIME", found.text)
    assert f"{found.kind} {found.status} {who}" == ENDS[text]


def test_output_in_pieces() -> None:
    output = StepOutput()
    for piece in (b"srun: err", b"or: n1: task 4: Kil"):
        output.feed(piece)
        assert not output.leaves_tasks
    output.feed(b"led\nsrun: Termina")
    assert output.leaves_tasks  # unless srun ends them
    output.feed(b"ting StepId=1.0\n")
    assert not output.leaves_tasks


RESUMED = "0: slurm_resolver: training resumes from checkpoints/ckpt-{}\n"
LONG = PROGRESS_SECONDS + 1
CHECKED = """\
1: F0000 00:00:1795916196.475921   13841 tensor_shape.cc:207] Check failed: size >= 0
srun: error: n2: task 1: Aborted"""


@pytest.mark.parametrize(
    ("first", "second", "seconds", "same"),
    [
        (RAISED, RAISED, 5.0, True),
        (RAISED, RAISED, LONG, False),
        (RAISED, RAISED.replace("no luck", "another"), 5.0, False),
        (RAISED, RAISED.replace("n2: task 1", "n4: task 1"), 5.0, True),
        (RESUMED.format(7) + RAISED, RESUMED.format(7) + RAISED, LONG, True),
        (RESUMED.format(7) + RAISED, RESUMED.format(8) + RAISED, 5.0, False),
        (KILLED, KILLED.replace("task 3", "task 2"), 5.0, False),
        (CHECKED, CHECKED.replace("17959", "18026").replace("13841", "20117"), 5.0, True),
        (NODE, NODE, 5.0, False),  # a step continues while there are nodes
    ],
)
def test_what_is_the_same_again(first: str, second: str, seconds: float, same: bool) -> None:
    failures = [failure(first), failure(second)._replace(seconds=seconds)]
    assert same_again(failures) == same
    assert not same_again(failures[:1])


def test_where_tasks_may_not_have_ended() -> None:
    output = StepOutput()
    assert output.left_on(["n1", "n2"]) == set()  # after a check that finds nothing
    output.status = 1
    output.feed(b"srun: error: n2: task 1: Exited with exit code 1\n")
    assert output.left_on(["n1", "n2", "n3"]) == {"n1", "n3"}
    output.feed(b"srun: error: Node failure on n3\n")
    assert output.left_on(["n1", "n2", "n3"]) == {"n3"}


RUNNING = {
    "JobState": "RUNNING",
    "Restarts": "1",
    "EndTime": "Unknown",
}


@pytest.mark.parametrize(
    ("changed", "told", "requeue"),
    [
        ({}, "", False),
        ({"JobState": "COMPLETING"}, "the job is COMPLETING", False),
        ({"Restarts": "2"}, "the job has been requeued", False),
        ({"PreemptTime": "2026-01-01T00:00:00"}, "Slurm is preempting the job", True),
        ({"EndTime": "1999-12-31T00:02:00"}, "", False),
        ({"EndTime": "1999-12-31T00:00:59"}, "the time limit is 59 s away", True),
    ],
)
def test_a_job_that_is_about_to_end(changed: Texts, told: str, requeue: bool) -> None:
    now = time.mktime(time.strptime("1999-12-31", "%Y-%m-%d"))
    found = ("", False)
    try:
        stop_if_job_ends({**RUNNING, **changed}, 1, 60, now)
    except NoRestartError as stop:
        found = (stop.why, stop.requeue)
    assert found == (told, requeue)


SRUN = [
    "--",
    "srun",
    "true",
]
REFUSED: list[tuple[Sequence[str], str]] = [
    (["--nodes=2", "--min-nodes=3", *SRUN], "--min-nodes 3: expected at most --nodes 2"),
    (["--", "python", "train.py"], "'python train.py': expected srun with its options"),
    (["--", "srun"], "'srun': expected srun with its options"),
    (SRUN, "SLURM_JOB_ID is not set"),
]


@pytest.mark.parametrize(("words", "told"), REFUSED)
def test_what_supervise_refuses(
    words: Sequence[str],
    told: str,
    capsys: Captured,
    tmp_path: Path,
    monkeypatch: Patch,
) -> None:
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert told in refused(capsys, "supervise", *words)
