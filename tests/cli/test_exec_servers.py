"""`slurm-resolver exec` ends parameter servers that never end by themselves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest
from kinds import Completed, Texts
from local_run import COMMAND, captured, in_step

ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "TF_CONFIG"))
}


class Case(NamedTuple):
    """The options of exec, the commands of each task, and the expected end of the step."""

    options: str
    acts: Texts
    status: int
    said: str = ""
    ended: tuple[str, ...] = ()  # tasks whose programs ended by themselves
    before: str = ""  # commands that a task runs before exec


JOINS = "exec sleep 300"
TRAINS = "sleep 5; [ -n \"$TF_CONFIG\" ] && touch '{job} {index} ended'"
LONG = "touch '{job} {index} runs'; sleep 60; touch '{job} {index} ended'"
KILLS = "while ! test -e 'worker 0 runs' -a -e 'worker 1 runs'; do sleep 0.1; done; kill -9 $PPID"
SIGNALLED = """trap 'touch "{{job}} {{index}} ended"; exit {1}' {0}
kill -{0} $PPID; while :; do sleep 0.05; done"""
WORKERS = "--jobs ps=2,worker=-1"
PS = {"ps 0": JOINS, "ps 1": JOINS}
CASES = {
    "all have trained": Case(
        WORKERS,
        {
            "ps 0": "trap '' TERM; sleep 300 & wait; wait",
            "ps 1": JOINS,
            "worker 1": TRAINS,
        },
        0,
        "",
        ("worker 1",),
    ),
    "the leader is killed": Case(
        WORKERS,
        {
            **PS,
            "worker 0": "kill -9 $$",
            "worker 1": LONG,
        },
        137,
        "worker 1 (rank 3 on localhost): worker 0 (rank 2 on localhost) has failed: SIGKILL",
    ),
    "another worker fails": Case(
        WORKERS,
        {
            **PS,
            "worker 0": TRAINS,
            "worker 1": "exit 3",
        },
        3,
        "worker 1 (rank 3 on localhost) has failed; the others continue: exit status 3",
        ("worker 0",),
    ),
    "a server fails": Case(
        WORKERS,
        {
            "ps 0": JOINS,
            "ps 1": "sleep 1; exit 5",
            "worker 0": LONG,
            "worker 1": LONG,
        },
        5,
        "ps 1 (rank 1 on localhost) is lost, and the training needs it: exit status 5",
    ),
    # A task that has never reached the service waits for it.
    "the launcher that holds the service is killed": Case(
        f"{WORKERS} --wait 60",
        {
            "ps 0": KILLS,
            "ps 1": JOINS,
            "worker 0": LONG,
            "worker 1": LONG,
        },
        137,
        "worker 0 (rank 2 on localhost): ps 0 (rank 0 on localhost) is lost: its process",
    ),
    # The service is in rank 0, which comes later than the others.
    "a worker fails before the service starts": Case(
        WORKERS,
        {
            **PS,
            "worker 0": "exit 3",
            "worker 1": LONG,
        },
        3,
        "ps 0 (rank 0 on localhost): worker 0 (rank 2 on localhost) has failed: exit status 3",
        before="test $SLURM_PROCID = 0 && sleep 8;",
    ),
    "signals reach the programs": Case(
        WORKERS,
        {
            **PS,
            "worker 0": SIGNALLED.format("USR1", 0),
            "worker 1": SIGNALLED.format("TERM", 7),
        },
        7,
        "worker 1 (rank 3 on localhost) has failed; the others continue: exit status 7",
        ("worker 0", "worker 1"),
    ),
    "a signal ends a program": Case(
        WORKERS,
        {**PS, "worker 1": "kill -INT $PPID; sleep 60"},
        130,
        "worker 1 (rank 3 on localhost) has failed; the others continue: SIGINT",
    ),
}


def run(case: Case, folder: Path) -> Completed:
    lines = [f"'{task}') {act};;" for task, act in case.acts.items()]
    return captured(
        [
            *in_step("-n4 -K0"),
            "sh",
            "-c",
            f'{case.before} exec "$@"',
            "-",
            *COMMAND,
            "exec",
            *case.options.split(),
            "--",
            "sh",
            "-c",
            f'case "{{job}} {{index}}" in {" ".join(lines)} esac',
        ],
        cwd=folder,
        env=ENVIRONMENT,
    )


# The others vary how a task ends.
IN_EACH_RUN = [
    "all have trained",
    "the leader is killed",
    "a server fails",
    "signals reach the programs",
]
VARIANTS = [name for name in CASES if name not in IN_EACH_RUN]


@pytest.mark.parametrize(
    "name",
    [*IN_EACH_RUN, *(pytest.param(name, marks=pytest.mark.nightly) for name in VARIANTS)],
)
def test_they_end_with_the_training(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    done = run(case, tmp_path)
    assert done.returncode == case.status, done.stderr
    assert case.said in done.stderr
    assert case.said or "slurm_resolver: " not in done.stderr
    assert {path.name for path in tmp_path.glob("* ended")} == {
        f"{task} ended" for task in case.ended
    }
