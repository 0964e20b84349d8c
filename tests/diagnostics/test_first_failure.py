"""The task that failed first is found by rules; each rule has its own short log."""

from __future__ import annotations

import pytest

from slurm_resolver.diagnostics.first_failure import FailureReader


def traceback_of(error: str, label: str = "") -> str:
    lines = ["Traceback (most recent call last):", '  File "t.py", line 1, in <module>', error]
    return "\n".join(label + line for line in lines)


CALL = "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed"
EXIT = "srun: error: n{}: task {}: {}"
GONE = "0: worker 1 (rank 1 on n2) is gone: its process has ended"
RULES = {
    "a task that this package reports, and its end in the launcher's words": (
        [GONE, traceback_of("FitError: " + GONE[3:], "0: "), EXIT.format(2, 1, "Killed")],
        ("rank 1 on n2", "Killed", False),
    ),
    "a task that this package reports in the log of another": (
        [GONE[3:], traceback_of("FitError: " + GONE[3:])],
        ("rank 1 on n2", "its process has ended", False),
    ),
    "a silent task, after which another one is cut off and reported": (
        [
            "0: worker 1 (rank 1 on n2) is gone: UnavailableError: Socket closed",
            traceback_of(CALL, "1: "),
            EXIT.format(2, 1, "Exited with exit code 1"),
            "0: worker 2 (rank 2 on n3) is lost: no message for 30 s",
        ],
        ("rank 2 on n3", "no message for 30 s", False),
    ),
    "a crash that a shell, or exec with parameter servers, has reported to srun": (
        [
            EXIT.format(1, 0, "Exited with exit code 1"),
            EXIT.format(2, 1, "Exited with exit code 139"),
        ],
        ("rank 1 on n2", "Exited with exit code 139", False),
    ),
    "a task of slurm-resolver run": (
        [
            "slurm-resolver run: task 1 was ended by SIGKILL; ending the other tasks",
            traceback_of(CALL, "0: "),
        ],
        ("rank 1", "SIGKILL", False),
    ),
    "a task that prints errors and continues": (
        [traceback_of("ValueError: one try"), *["step"] * 300],
        None,
    ),
    "an error of a call to another task": ([traceback_of(CALL)], ("", CALL, True)),
    "a killed task, whose end the others notice": (
        [traceback_of(CALL, "0: "), EXIT.format(2, 1, "Killed"), traceback_of("E: x", "2: ")],
        ("rank 1 on n2", "Killed", False),
    ),
    "an error that another task prints later, from its own fault": (
        [traceback_of(CALL, "0: "), traceback_of("ValueError: x", "1: ")],
        ("rank 1", "ValueError: x", False),
    ),
    "a node": (
        ["srun: error: Node failure on n7", traceback_of("ConnectionError: x", "0: ")],
        ("node n7", "node failure", False),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules(rule: str) -> None:
    texts, expected = RULES[rule]
    reader = FailureReader()
    for number, line in enumerate("\n".join(texts).split("\n"), 1):
        reader.read(line, number)
    failure = reader.first()
    found = failure and (failure.task, failure.line, failure.follows)
    assert found == expected
