"""The tasks of a step meet on the real Slurm, with late and killed tasks and other faults.

Ranks 0 and 1 run on n9, ranks 2 and 3 on n10. The coordination service runs in rank 0. Every
version of Slurm describes a plane layout completely, so the tasks meet only to be ready. The cases
run at the same time, because they mostly wait.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Callable, NamedTuple, Optional

import pytest
from folders import helper
from kinds import Fields, Texts
from munged import running_munged
from network_faults import packets_dropped
from slurm_cluster import SlurmCluster
from slurm_jobs import wait_for

from slurm_resolver.coordination.secret import MUNGE_SOCKET_VARIABLE

TASK = shlex.join(helper("slurm_ready.py"))
STEP = "-w n9,n10 -N2 --ntasks-per-node=2 -m plane=2"
NAMES = [
    "worker 0 (rank 0 on n9)",
    "worker 1 (rank 1 on n9)",
    "worker 2 (rank 2 on n10)",
    "worker 3 (rank 3 on n10)",
]
KILLED = "is gone, and cannot take part in the start: its process has ended"


class Events:
    """The files with which the tasks of a case report their progress."""

    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        self.slurm = slurm
        self.folder = folder

    def await_all(self, *names: str) -> None:
        wait_for(
            lambda: all((self.folder / name).exists() for name in names),
            60,
            lambda: f"{names} {sorted(self.folder.iterdir())}",
        )


Act = Callable[[Events], None]
Told = dict[int, Optional[str]]  # by rank


def kill(rank: int) -> Act:
    def send(events: Events) -> None:
        events.await_all("came 0", "came 2", "came 3")
        events.slurm.run(f"kill -KILL {(events.folder / f'pid {rank}').read_text()}")

    return send


def gap(seconds: float) -> Act:
    """Cuts n12 off from n11 for some seconds, during which the last task arrives."""

    def cut(events: Events) -> None:
        events.await_all("came 2", "came 3")
        slurm = events.slurm
        with packets_dropped(slurm, "n11", "n12"), packets_dropped(slurm, "n12", "n11"):
            (events.folder / "go").touch()
            time.sleep(seconds)

    return cut


class Case(NamedTuple):
    """The error of each rank (None if it is ready), and the fault that causes it."""

    told: Told
    options: str = ""
    late: Mapping[int, float | None] = {}
    act: Act = lambda events: None
    step: str = STEP


WAITS = {1: None}
SERVICE_GONE = "(local rank 0 on n9) is gone, and cannot take part in the start"
GAP = STEP.replace("n9,n10", "n11,n12")
ALL_READY: Told = dict.fromkeys(range(4))
CASES = {
    "skewed starts": Case(
        ALL_READY,
        "--timeout 90",
        {
            0: 13,
            1: 30,
            2: 21,
        },
    ),
    "killed": Case(dict.fromkeys((0, 3), f"{NAMES[2]} {KILLED}"), "", WAITS, kill(2)),
    "service killed": Case(dict.fromkeys((2, 3), SERVICE_GONE), "", WAITS, kill(0)),
    "a gap of the network": Case(ALL_READY, "--timeout 90", WAITS, gap(22), GAP),
    "other jobs": Case(
        dict.fromkeys(range(4), "the tasks disagree on the jobs (argument jobs): "),
        "--other-jobs-in 1",
    ),
}
FOR_ROOT = {"a gap of the network"}


def run(slurm: SlurmCluster, folder: Path, case: Case) -> Told:
    """Runs the tasks; returns the error of each task that survived."""
    events = folder / "events"
    output = folder / "output"
    for each in (events, output):
        each.mkdir(parents=True)
    env = {"TASK_OUTPUT": str(output), "TASK_EVENTS": str(events)}
    with ThreadPoolExecutor(1) as pool:
        late = shlex.quote(json.dumps(case.late))
        step_ends = pool.submit(
            slurm.run,
            f"srun {case.step} {TASK} {case.options} --late {late}",
            env=env,
            status=None,
            timeout=150,
        )
        try:
            case.act(Events(slurm, events))
            told = len(case.told)
            while len(list(output.iterdir())) < told and not step_ends.done():
                time.sleep(0.05)
        finally:
            (events / "stop").touch()
        printed = step_ends.result().stderr
    assert "Traceback" not in printed, printed
    return read(output)


def read(output: Path) -> Told:
    return {int(path.name): json.loads(path.read_text()) for path in output.iterdir()}


def check(told: Told, case: Case) -> None:
    for rank, expected in case.told.items():
        if expected is None:
            assert told[rank] is None, case
        else:
            assert all(part in str(told[rank]) for part in expected.split(".*")), (told, case)


@pytest.fixture(scope="module")
def running(
    real_slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Told]]]:
    folder = tmp_path_factory.mktemp("meetings")
    with ThreadPoolExecutor(6) as pool:
        yield {
            name: pool.submit(run, real_slurm, folder / name.replace(" ", "-"), case)
            for name, case in CASES.items()
            if name not in FOR_ROOT or not os.geteuid()
        }


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.root] if name in FOR_ROOT else []) for name in CASES],
)
def test_what_each_task_says(running: Fields, name: str) -> None:
    check(running[name].result(), CASES[name])


TOO_FEW = "`ulimit -n` is 64 on n8: expected at least 116 open files"


@pytest.mark.newest
def test_too_few_open_files_are_named(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    step = "-w n8,n9,n10,n11,n12 -N5 -n20 -m plane=4"
    task = f"ulimit -n 64; exec {TASK} --timeout 120"
    assert (
        real_slurm.run(
            f"srun {step} bash -c {shlex.quote(task)}",
            env={"TASK_OUTPUT": str(tmp_path)},
            timeout=250,
        ).stderr
        == ""
    )
    check(
        read(tmp_path),
        Case(dict.fromkeys(range(20), f"(local rank 0 on n8) cannot start: {TOO_FEW}")),
    )


@pytest.fixture
def only_ipv6(real_slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """Gives two nodes a second name that has only an IPv6 address."""
    hosts = real_slurm.directory / "hosts"
    before = hosts.read_text()
    names = {"n9": "fd77::9", "n10": "fd77::10"}
    with hosts.open("a") as file:  # all nodes use this file
        file.writelines(f"{address} {name}-v6\n" for name, address in names.items())
    for name, address in names.items():
        real_slurm.run_on(name, f"ip -6 addr add {address}/64 dev eth0 nodad")
    yield real_slurm
    for name, address in names.items():
        real_slurm.run_on(name, f"ip -6 addr del {address}/64 dev eth0")
    hosts.write_text(before)


@pytest.mark.newest
@pytest.mark.root
def test_nodes_that_have_ipv6_only(only_ipv6: SlurmCluster, tmp_path: Path) -> None:
    assert (
        run(
            only_ipv6,
            tmp_path,
            Case(ALL_READY, "--node-address=-v6"),
        )
        == ALL_READY
    )


SECRET = {"SLURM_RESOLVER_SECRET": "a value that nobody guesses"}


def meet(slurm: SlurmCluster, output: Path, env: Texts, before: str = "") -> Told:
    """Returns the error of each of two tasks on two nodes."""
    output.mkdir()
    task = f"{before}exec {TASK} --timeout 5"
    slurm.run(
        f"srun -n2 -w n8,n9 -m cyclic bash -c {shlex.quote(task)}",
        env={**env, "TASK_OUTPUT": str(output)},
        status=None,
    )
    return read(output)


def test_the_tasks_of_a_step_share_the_secret(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    with running_munged() as munged:
        for means, env in {
            "variable": SECRET,
            "none": {MUNGE_SOCKET_VARIABLE: "/nowhere"},
            "munge": {MUNGE_SOCKET_VARIABLE: munged.socket},
        }.items():
            assert meet(real_slurm, tmp_path / means, env) == {0: None, 1: None}, means
