"""The tasks of a step meet on the real Slurm: late ones, other ones, and over a bad network.

Ranks 0 and 1 run on n9, ranks 2 and 3 on n10. The coordination service runs in rank 0. Every
version of Slurm describes a plane layout completely, so the tasks meet only to be ready.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Optional

import pytest
from folders import helper
from kinds import Texts
from munged import running_munged
from network_faults import packets_dropped
from slurm_cluster import SlurmCluster
from slurm_jobs import wait_for

from slurm_resolver.coordination.secret import MUNGE_SOCKET_VARIABLE

TASK = shlex.join(helper("slurm_ready.py"))
STEP = "-w n9,n10 -N2 --ntasks-per-node=2 -m plane=2"


Told = dict[int, Optional[str]]  # the error by rank; None for a task that is ready
ALL_READY: Told = dict.fromkeys(range(4))


def run(
    slurm: SlurmCluster,
    folder: Path,
    options: str = "",
    late: Mapping[int, float | None] = {},
    step: str = STEP,
) -> Told:
    """Runs the tasks; returns what each of them says."""
    (folder / "events").mkdir()
    (folder / "output").mkdir()
    done = slurm.run(
        f"srun {step} {TASK} {options} --late {shlex.quote(json.dumps(late))}",
        env={
            "TASK_OUTPUT": str(folder / "output"),
            "TASK_EVENTS": str(folder / "events"),
        },
        status=None,
        timeout=150,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return read(folder / "output")


def read(output: Path) -> Told:
    return {int(path.name): json.loads(path.read_text()) for path in output.iterdir()}


def test_skewed_starts(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    assert run(real_slurm, tmp_path, "--timeout 90", {0: 13, 1: 30, 2: 21}) == ALL_READY


def test_other_jobs_in_one_task(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    told = run(real_slurm, tmp_path, "--other-jobs-in 1")
    assert len(told) == 4
    for error in told.values():
        assert "the tasks disagree on the jobs (argument jobs): " in str(error)


@pytest.mark.root
def test_a_gap_of_the_network(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    """n12 is cut off from n11 for 22 s, during which the last task arrives."""
    step = STEP.replace("n9,n10", "n11,n12")
    events = tmp_path / "events"
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(run, real_slurm, tmp_path, "--timeout 90", {1: None}, step)
        wait_for(
            lambda: (events / "came 2").exists() and (events / "came 3").exists(),
            60,
            lambda: f"{sorted(events.iterdir())}",
        )
        with packets_dropped(real_slurm, "n11", "n12"), packets_dropped(real_slurm, "n12", "n11"):
            (events / "go").touch()
            time.sleep(22)
    assert told.result() == ALL_READY


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
    told = read(tmp_path)
    assert len(told) == 20
    for error in told.values():
        assert f"(local rank 0 on n8) refuses this process: it cannot start: {TOO_FEW}" in str(
            error
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
    assert run(only_ipv6, tmp_path, "--node-address=-v6") == ALL_READY


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
