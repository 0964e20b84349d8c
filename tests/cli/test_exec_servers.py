"""Programs whose parameter servers never end by themselves, under `exec --end-servers`."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Tuple

import pytest
from folders import HELPERS
from monitored_jobs import address_of

from slurm_resolver.parameter_server.monitor import Monitor

PROGRAM = [sys.executable, "-m", "slurm_resolver"]
TOGETHER = [*PROGRAM, "run", "-n4", "-K0", "--"]
EXEC = [*PROGRAM, "exec", "--jobs", "ps=2,worker=-1"]
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "TF_CONFIG"))
}


class Case(NamedTuple):
    """By job and index, what the program does, and exit status and words of the whole."""

    acts: Dict[str, str]
    status: int
    told: List[str]


JOINS = "exec sleep 300"
TRAINS = "sleep 15"  # it is ended before that, or ends by itself
BOTH_JOIN = {"ps 0": JOINS, "ps 1": JOINS}
CASES = {
    "all have trained": Case({**BOTH_JOIN, "worker 0": ":", "worker 1": "sleep 1"}, 0, []),
    "a server that takes no SIGTERM": Case(
        {"ps 0": "trap '' TERM; sleep 300 & wait; wait", "ps 1": JOINS}, 0, []
    ),
    "the leader fails": Case(
        {**BOTH_JOIN, "worker 0": "exit 3", "worker 1": TRAINS},
        3,
        ["worker 0 (rank 2 on localhost) has failed: exit status 3"],
    ),
    "the leader is killed": Case(
        {**BOTH_JOIN, "worker 0": "kill -9 $$", "worker 1": TRAINS},
        137,
        ["worker 0 (rank 2 on localhost) has failed: "],
    ),
    "a server fails": Case(
        {"ps 0": JOINS, "ps 1": "exit 5", "worker 0": TRAINS, "worker 1": TRAINS},
        5,
        ["ps 1 (rank 1 on localhost) is lost, and its variables with it: exit status 5"],
    ),
}


# Who comes when its job has failed already waits for the monitor as long as tasks may start late.
COME = 'touch "{job} {index}"; until [ $(ls | wc -l) = {num_tasks} ]; do sleep 0.1; done; sleep 1'


@pytest.mark.parametrize("name", CASES)
def test_they_end_with_the_training(name: str, ended: Ended) -> None:
    check(CASES[name], ended["together", name].result())


OUTLASTS = "sleep 5"  # longer than servers are given to end by themselves
WAITS = "until [ -e ../done ]; do sleep 0.1; done; exit 5"
WATCHED = {
    "all have trained": Case({**BOTH_JOIN, "worker 0": ":", "worker 1": "sleep 1"}, 0, []),
    "all have failed": Case({**BOTH_JOIN, "worker 0": "exit 3", "worker 1": "kill -9 $$"}, 137, []),
    "one has failed, and the other trains on": Case(
        {**BOTH_JOIN, "worker 0": "exit 3", "worker 1": OUTLASTS + "; touch '../worker 1 ended'"},
        3,
        [],
    ),
    "the servers end by themselves": Case(
        {"worker 0": ":", "worker 1": OUTLASTS + "; touch '../worker 1 ended'"}, 0, []
    ),
    "the servers end after the training": Case(
        {**dict.fromkeys(BOTH_JOIN, WAITS), "worker 1": "sleep 1; touch ../done"},
        5,
        [],
    ),
    "a server fails": Case(
        {"ps 0": JOINS, "ps 1": "exit 5", "worker 1": OUTLASTS + "; touch '../worker 1 ended'"},
        5,
        [],
    ),
}


@pytest.mark.parametrize("name", WATCHED)
def test_they_end_by_themselves_when_none_trains(name: str, ended: Ended) -> None:
    check(WATCHED[name], ended["watched", name].result())


JOINED = f"{shlex.quote(sys.executable)} {HELPERS / 'joins.py'} > /dev/null"
CHIEF_TOLD = "slurm_resolver: the chief has ended, and {} in join(): exec ends"
ENDED = "; touch '../worker 1 ended'"
# Long enough for a hundred looks; "trains" in other ways than by waiting in join().
WITH_CHIEF = {
    "workers that only join": Case(
        {"ps 0": JOINS, "worker 0": f"exec {JOINED}", "worker 1": f"{JOINED}; true"},
        0,
        [CHIEF_TOLD.format("2 workers only wait")],
    ),
    "a worker that only joins beside one that trains": Case(
        {"ps 0": JOINS, "worker 0": JOINED, "worker 1": f"sleep 10{ENDED}"},
        0,
        [CHIEF_TOLD.format("1 worker only waits")],
    ),
    "workers that train": Case(
        {"ps 0": JOINS, "worker 0": "sleep 8", "worker 1": f"sleep 10{ENDED}"}, 0, []
    ),
    "a worker that joins at first": Case(
        {
            "chief 0": "until [ -e ../trains ]; do sleep 0.1; done",
            "ps 0": JOINS,
            "worker 1": f"timeout 4 {JOINED}; sleep 2; touch ../trains; sleep 6{ENDED}",
        },
        0,
        [],
    ),
    "the chief fails": Case(
        {"chief 0": "exit 3", "ps 0": JOINS, "worker 0": JOINED, "worker 1": f"{JOINED}"},
        3,
        [CHIEF_TOLD.format("2 workers only wait")],
    ),
    "a chief that trains on": Case(
        {"chief 0": f"sleep 10{ENDED}", "ps 0": JOINS, "worker 0": JOINED, "worker 1": JOINED},
        0,
        [CHIEF_TOLD.format("2 workers only wait")],
    ),
}
LOOKS_OFTEN = """
import functools, sys
from slurm_resolver.cli import main
from slurm_resolver.parameter_server import ended_program
for name in ("run_watched", "run_in_job"):
    run = functools.partial(getattr(ended_program, name), look_seconds=0.05)
    setattr(ended_program, name, run)
sys.exit(main())
"""
EXEC_WITH_CHIEF = [sys.executable, "-c", LOOKS_OFTEN, "exec", "--jobs", "chief=1,ps=1,worker=-1"]


@pytest.mark.parametrize("name", WITH_CHIEF)
def test_workers_that_only_join_end_with_the_chief(name: str, ended: Ended) -> None:
    case, outcome = WITH_CHIEF[name], ended["with a chief", name].result()
    check(case, outcome)
    assert outcome.errors.count("slurm_resolver: ") == len(case.told)


AS_ONE_JOB = {
    "workers that only join": Case(
        {"ps 0": JOINS, "worker 0": JOINED, "worker 1": f"sleep 10{ENDED}"}, 0, []
    ),
    "the chief fails": Case(
        {"chief 0": "sleep 3; exit 3", "ps 0": JOINS, "worker 0": JOINED, "worker 1": JOINED},
        3,
        ["worker 1 (rank 3 on localhost): chief 0 (rank 0 on localhost) has failed: exit status 3"],
    ),
}


@pytest.mark.parametrize("name", AS_ONE_JOB)
def test_workers_that_only_join_end_with_the_job(name: str, ended: Ended) -> None:
    check(AS_ONE_JOB[name], ended["as one job", name].result())


# By kind: the cases, and the command of each task.
KINDS: Dict[str, Tuple[Dict[str, Case], List[str]]] = {
    "together": (CASES, [*EXEC, "--end-servers"]),
    "watched": (WATCHED, EXEC),
    "with a chief": (WITH_CHIEF, EXEC_WITH_CHIEF),
    "as one job": (AS_ONE_JOB, [*EXEC_WITH_CHIEF, "--end-servers"]),
}


class Outcome(NamedTuple):
    """How a step has ended, and whether its second worker came to its own end."""

    status: int
    errors: str
    worker_ended: bool


Ended = Dict[Tuple[str, str], "Future[Outcome]"]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """The outcome of every case by its kind and name. Most of each is waiting: some run at once."""
    with ThreadPoolExecutor(5) as pool:
        yield {
            (kind, name): pool.submit(run, case, command, tmp_path_factory.mktemp("case"))
            for kind, (cases, command) in KINDS.items()
            for name, case in cases.items()
        }


@pytest.mark.parametrize(("options", "parents"), [(["--no-end-servers"], 1), ([], 4)])
def test_whether_the_program_is_a_child(tmp_path: Path, options: List[str], parents: int) -> None:
    """One that replaces its starter is the process that Slurm, and here `run`, has started."""
    command = [*TOGETHER, *EXEC, *options, "--", "sh", "-c", "echo $PPID > {rank}"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    assert len({path.read_text() for path in tmp_path.iterdir()}) == parents


def test_a_worker_that_has_ended_before_the_monitor_came_is_waited_for_no_longer(
    port: int, tmp_path: Path
) -> None:
    jobs = ["ps 0", "worker 0"]
    code = (
        "import os, sys; from monitored_jobs import address_of; "
        "from slurm_resolver.parameter_server import ended_program, member; "
        "member._LEAVE_SECONDS = 0.1; "
        f"ended_program.run_in_job(['touch', 'ended'], os.environ, address_of({jobs}, 1, {port}))"
    )
    environ = {**os.environ, "PYTHONPATH": str(HELPERS)}
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environ) as worker:
        while not (tmp_path / "ended").exists():
            time.sleep(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):  # as it would leave by then
            worker.wait(1.0)
        monitor = Monitor(address_of(jobs, 0, port))
        monitor.serve(120.0)
        assert monitor.wait() == (0, "all workers have finished")
        assert worker.wait(60.0) == 0


def run(case: Case, command: List[str], top: Path) -> Outcome:
    """Starts the four tasks, and waits for their end."""
    folder = top / "step"
    folder.mkdir()
    lines = [f"'{task}') {act};;" for task, act in case.acts.items()]
    script = f'{COME}; case "{{job}} {{index}}" in {" ".join(lines)} esac'
    done = subprocess.run(
        [*TOGETHER, *command, "--", "sh", "-c", script],
        cwd=folder,
        # other tests of this process may set variables meanwhile
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=400,
    )
    return Outcome(done.returncode, done.stderr, (top / "worker 1 ended").exists())


def check(case: Case, outcome: Outcome) -> None:
    """Compares how all have ended."""
    assert outcome.status == case.status, outcome.errors
    for line in case.told:
        assert line in outcome.errors
    assert case.told or "slurm_resolver: " not in outcome.errors
    told = any("worker 1 ended" in act for act in case.acts.values())
    assert outcome.worker_ended == told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--jobs", "worker=-1"], "this step has the jobs worker; expected a ps, and a chief"),
        (["--jobs", "ps=1,worker=-1", "--restart-workers=1"], "expected no --restart-workers"),
    ],
)
def test_where_it_cannot_be_it_says_so(options: List[str], message: str) -> None:
    command = [*PROGRAM, "run", "-n2", "--", *PROGRAM, "exec", "--end-servers", *options, "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert message in done.stderr
