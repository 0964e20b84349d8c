"""Which task failed first, by logs of real runs and by some that are made for a rule."""

from __future__ import annotations

import time
from typing import Dict, Iterable, Optional, Tuple

import pytest
from folders import DATA
from hypothesis import given
from hypothesis import strategies as st

from slurm_resolver.diagnostics.first_failure import Failure, FailureReader, first_of

# By log the task that failed first, its line's number, and how that begins. Of the others only what
# the tasks have seen of another one is there, or they did not fail.
FIRST: Dict[str, Tuple[str, int, str]] = {
    "command-not-found": ("rank 0 on n8", 3, "Exited with exit code 127"),
    "ended-after-failure": ("rank 1 on n8", 1, "Segmentation fault"),
    "fit-failed": ("rank 1 on n10", 30, "RuntimeError: boom in callback"),
    "job-without-strategy": ("", 15, "ValueError: There is no id for task_type 'ps'"),
    "keras-3-fit": ("", 23, "ValueError: Attempt to convert a value (PerReplica"),
    "keras-3-fit-servers": ("", 8, "ValueError: To use this dataset, you need to pass"),
    "no-worker": ("", 8, "ValueError: There must be at least one worker."),
    "out-of-memory": ("rank 7 on n10", 3, "Out Of Memory"),
    "port-taken": ("", 19, "tensorflow.python.framework.errors_impl.UnknownError: Could not start"),
    "port-taken-2.15": ("", 19, "tensorflow.python.framework.errors_impl.UnknownError: Could not"),
    "program-not-allowed": ("rank 0 on n8", 2, "Exited with exit code 13"),
    "program-not-found-26.05": ("rank 0 on n8", 2, "Exited with exit code 2"),
    "program-not-found": ("rank 0 on n9", 1, "Exited with exit code 2"),
    "strategy-scope": ("rank 1 on n10", 17, "RuntimeError: Mixing different tf.distribute.Str"),
    "strategy-too-late": ("", 15, "RuntimeError: Collective ops must be configured at program"),
    "task-crashed": ("rank 1 on n10", 3, "Aborted"),
    "task-failed": ("rank 1 on n10", 1, "Exited with exit code 3"),
    "tensorflow-slurm-resolver-nvidia-smi": ("", 24, "FileNotFoundError: [Errno 2] No such file"),
    "tf-keras-missing": ("", 10, "ImportError: Keras cannot be imported. Check that it is"),
    "tensorflow-slurm-resolver-range": ("", 8, "ValueError: range() arg 3 must not be zero"),
    "workers-differ": ("rank 1 on n10", 16, "tensorflow.python.framework.errors_impl.InvalidArg"),
    "workers-differ-type": ("rank 1 on n10", 17, "tensorflow.python.framework.errors_impl.Intern"),
}


def first_in(lines: Iterable[str]) -> Optional[Failure]:
    reader = FailureReader()
    for number, line in enumerate(lines, 1):
        reader.read(number, line)
    return reader.first()


@pytest.mark.parametrize("name", sorted(path.stem for path in (DATA / "logs").glob("*.log")))
def test_logs_of_real_runs(name: str) -> None:
    failure = first_in((DATA / "logs" / f"{name}.log").read_text(encoding="utf-8").split("\n"))
    if failure is None or failure.follows:
        assert name not in FIRST
        return
    task, number, line = FIRST[name]
    assert (failure.task, failure.line_number) == (task, number)
    assert failure.line.startswith(line)


def traceback_of(error: str, label: str = "") -> str:
    lines = ["Traceback (most recent call last):", '  File "t.py", line 1, in <module>', error]
    return "\n".join(label + line for line in lines)


CALL = "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed"
EXIT = "srun: error: n{}: task {}: {}"
RULES = {
    "a task that prints errors and goes on": (
        [traceback_of("ValueError: one try"), *["step"] * 300],
        None,
    ),
    "the last error of a chain": (
        [traceback_of("KeyError: 1"), "", "During handling of the above", traceback_of("E: 2")],
        ("", "E: 2", False),
    ),
    "an error of a call to another task": ([traceback_of(CALL)], ("", CALL, True)),
    "a killed task, of which the others hear": (
        [traceback_of(CALL, "0: "), EXIT.format(2, 1, "Killed"), traceback_of("E: x", "2: ")],
        ("rank 1 on n2", "Killed", False),
    ),
    "an error that another task prints later, from its own fault": (
        [traceback_of(CALL, "0: "), traceback_of("ValueError: x", "1: ")],
        ("rank 1", "ValueError: x", False),
    ),
    "tasks that srun ends after the first": (
        [
            EXIT.format(3, 2, "Exited with exit code 1"),
            "srun: Terminating StepId=1.0",
            EXIT.format(1, 0, "Killed"),
        ],
        ("rank 2 on n3", "Exited with exit code 1", False),
    ),
    "a step that is cancelled": (
        [
            "0: slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-21T02:39:13 ***",
            EXIT.format(1, 0, "Terminated"),
        ],
        None,
    ),
    "a node": (
        ["srun: error: Node failure on n7", traceback_of("ConnectionError: x", "0: ")],
        ("node n7", "Node failure", False),
    ),
    "one task, whose log has no labels": (
        [traceback_of("ValueError: x"), EXIT.format(2, 1, "Exited with exit code 1")],
        ("rank 1 on n2", "ValueError: x", False),
    ),
    "a range of tasks": (
        ["srun: error: n2: tasks 4-7: Exited with exit code 1"],
        ("rank 4 on n2", "Exited with exit code 1", False),
    ),
    "tasks of several nodes that ended alike": (
        ["srun: error: n[2-3,7]: tasks 4-7,9: Exited with exit code 1"],
        ("rank 4", "Exited with exit code 1", False),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules(rule: str) -> None:
    texts, expected = RULES[rule]
    failure = first_in("\n".join(texts).split("\n"))
    found = failure and (failure.task, failure.line, failure.follows)
    assert found == expected


NOON = time.mktime((2026, 3, 4, 12, 0, 0, 0, 0, -1))
LAST_YEAR = time.strftime("%m%d", time.localtime(time.time() + 40 * 86400))


@pytest.mark.parametrize(
    ("line", "when"),
    [
        ("2026-03-04 12:00:00.123456: I tensorflow/core/x.cc:1] y", NOON),
        ("2026-03-04T12:00:00 INFO", NOON),
        ("[2026-03-04 12:00:00,123] INFO", NOON),
        (f"E0000 00:00:{NOON:.0f}.379187   28031 x.cc:252] y", NOON),
        ("2026-02-31 12:00:00 no such day", None),
        ("12:00:00 no day", None),
        ("", None),
    ],
)
def test_times(line: str, when: Optional[float]) -> None:
    failure = first_in([line, *traceback_of("E: x").split("\n")])
    assert failure is not None
    assert failure.time == when


def test_a_time_without_a_year_is_not_in_the_future() -> None:
    failure = first_in(
        [f"I{LAST_YEAR} 12:00:00.123456 1 x.cc:1] y", *traceback_of("E").split("\n")]
    )
    assert failure is not None
    assert failure.time is not None
    assert time.time() - 366 * 86400 < failure.time < time.time()


def test_the_log_of_the_first_comes_first() -> None:
    late, early = Failure("", 9, "E", 30.0), Failure("", 99, "E", 20.0)
    unknown, effect = Failure("", 1, "E", None), Failure("", 5, "U", 10.0, follows=True)
    assert first_of([None, late, unknown, early, effect]) == [3, 1, 2, 4, 0]


LINES = [line for texts, _ in RULES.values() for text in texts for line in text.split("\n")]


@given(st.lists(st.text() | st.sampled_from(LINES)))
def test_any_lines(lines: Iterable[str]) -> None:
    failure = first_in(lines)
    assert failure is None or failure.line
