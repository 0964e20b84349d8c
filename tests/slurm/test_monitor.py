"""Parameter server jobs of several tasks a node on the real Slurm: one connection a node.

Ranks 0 to 3 run on n9, with the chief (rank 0), 4 to 7 on n10, with the monitor (rank 4), and 8 to
11 on n11. All others are workers; those that come first relay for their nodes.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import pytest
from folders import HELPERS
from network_faults import packets_dropped
from slurm_cluster import SlurmCluster, end_srun

pytestmark = [pytest.mark.slurm, pytest.mark.newest]

TASK = shlex.join([sys.executable, str(HELPERS / "slurm_monitored.py")])
EACH = f"""
{TASK} 2> "$TASK_OUTPUT/$SLURM_PROCID.errors"
echo $? > "$TASK_OUTPUT/$SLURM_PROCID.status"
"""
NODES = ["n9", "n10", "n11"]
STEP = f"-w {','.join(NODES)} -N3 --ntasks-per-node=4 -m plane=4"
RANKS = range(12)
CHIEF, MONITOR, RELAYS = 0, 4, [1, 5, 9]


class Job:
    """A step whose tasks come to their monitor."""

    def __init__(self, slurm: SlurmCluster, folder: Path, grace: int) -> None:
        self.slurm = slurm
        self.folder = folder
        self.process = slurm.popen(
            f"srun {STEP} bash -c {shlex.quote(EACH)}",
            env={
                "TASK_OUTPUT": str(folder),
                "SLURM_RESOLVER_NETWORK_GRACE": str(grace),
                "FIRST": ",".join(map(str, [MONITOR, *RELAYS])),
            },
        )
        self.come(MONITOR, *RELAYS)
        (folder / "COME").touch()
        self.come(*RANKS)

    def task(self, rank: int) -> Dict[str, Any]:
        found: Dict[str, Any] = json.loads((self.folder / str(rank)).read_text())
        return found

    def until(self, what: Callable[[], object], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            if self.process.poll() is not None or time.monotonic() > deadline:
                files = map(str, self.folder.iterdir())
                pytest.fail("\n".join([*files, self.errors(), *self.end()]))
            time.sleep(0.05)

    def come(self, *ranks: int) -> None:
        self.until(lambda: all((self.folder / str(rank)).exists() for rank in ranks))

    def connections(self) -> int:
        """How many connections there are at the monitor."""
        port = self.task(MONITOR)["port"]
        shown = self.slurm.run_on("n10", f"ss -Htn state established sport = :{port}").stdout
        return len(shown.splitlines())

    def kill(self, rank: int, sign: signal.Signals) -> None:
        self.slurm.run(f"kill -{sign.value} {self.task(rank)['pid']}")

    def statuses(self) -> Dict[int, int]:
        found = {}
        for path in self.folder.glob("*.status"):
            with contextlib.suppress(ValueError):
                found[int(path.stem)] = int(path.read_text())
        return found

    def errors(self) -> str:
        """What the tasks have written until now."""
        return "".join(path.read_text() for path in self.folder.glob("*.errors"))

    def finish(self) -> Tuple[Dict[int, int], str]:
        """Lets the chief finish; returns the statuses, and what the tasks wrote."""
        (self.folder / "STOP").touch()
        try:
            srun_tells = self.process.communicate(timeout=180)[1]
        except subprocess.TimeoutExpired:
            pytest.fail("\n".join([str(self.statuses()), self.errors(), *self.end()]))
        return self.statuses(), self.errors() + srun_tells

    def end(self) -> Tuple[str, str]:
        return end_srun(self.process)


Start = Callable[..., Job]


@pytest.fixture
def start(real_slurm: SlurmCluster, tmp_path: Path) -> Iterator[Start]:
    started: List[Job] = []

    def one(grace: int) -> Job:
        started.append(Job(real_slurm, tmp_path, grace))
        return started[-1]

    yield one
    for job in started:
        if job.process.poll() is None:
            job.end()


def test_a_node_has_one_connection_until_its_relay_ends_or_is_stopped(start: Start) -> None:
    job = start(12)
    assert job.connections() == 3
    killed, _, stopped = RELAYS
    job.kill(killed, signal.SIGKILL)
    job.until(lambda: killed in job.statuses())
    job.until(lambda: job.connections() == 3)
    job.kill(stopped, signal.SIGSTOP)
    job.until(lambda: job.connections() >= 2 + 4)
    job.kill(stopped, signal.SIGCONT)
    statuses, errors = job.finish()
    assert statuses == {rank: 128 + signal.SIGKILL if rank == killed else 0 for rank in RANKS}
    told = [line for line in errors.splitlines() if line.startswith("slurm_resolver:")]
    assert len(told) == 1, errors
    assert f"(rank {killed} on n9) is lost, the others go on: its process was killed" in told[0]


def test_all_tasks_of_a_node_that_vanishes_are_given_up(start: Start) -> None:
    job = start(4)
    gone = {8, 9, 10, 11}
    told = [
        f"(rank {rank} on n11) is lost, the others go on: its node has not answered for 4 s"
        for rank in gone
    ]
    job.slurm.run_on("n11", "ip link set eth0 down")
    try:
        job.until(lambda: gone <= set(job.statuses()))
        # both sides give up by their own clocks
        job.until(lambda: all(line in job.errors() for line in told))
    finally:
        job.slurm.run_on("n11", "ip link set eth0 up")
    statuses, errors = job.finish()
    assert statuses == {rank: int(rank in gone) for rank in RANKS}
    for rank in gone:
        lost = "ps 0 (rank 4 on n10) is lost, and its variables with it: its node has not answered"
        assert f"rank {rank}: {lost}" in errors


def test_a_gap_in_which_the_connections_of_the_nodes_are_forgotten(start: Start) -> None:
    job = start(20)
    port = job.task(MONITOR)["port"]
    with packets_dropped(job.slurm, "n11", "n10"), packets_dropped(job.slurm, "n10", "n11"):
        destroyed = job.slurm.run_on("n10", f"ss -Kn state established sport = :{port}").stdout
        assert destroyed.count(f":{port}") >= 3, destroyed
        job.until(lambda: job.connections() >= 2)  # of the other nodes
    job.until(lambda: job.connections() >= 3)
    statuses, errors = job.finish()
    assert statuses == dict.fromkeys(RANKS, 0)
    assert "slurm_resolver:" not in errors
