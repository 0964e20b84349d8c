"""A firewall that lets the tasks meet, but not reach each other at TensorFlow's ports."""

from __future__ import annotations

import json
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from folders import helper
from kinds import Texts
from network_faults import firewall
from slurm_cluster import SlurmCluster

TASK = shlex.join(helper("slurm_ready.py"))
STEP = "srun -n2 -N2 -w n9,n10"
WORKERS = ("worker 0 (rank 0 on n9)", "worker 1 (rank 1 on n10)")
TO = "-p tcp --dport {port}"
FROM = "-p tcp --sport {port}"
REFUSED = "[Errno 111] Connection refused at 10.77.0."
MTU = "it answers, but full packets do not arrive: an interface has a larger MTU"


class Case(NamedTuple):
    """A rule on n10, the rank that does not answer the other one, and why."""

    rule: str
    silent: int
    why: str


CASES = {
    "drops what comes": Case(f"INPUT {TO} -j DROP", 1, "timed out at 10.77.0."),
    "drops what leaves": Case(f"OUTPUT {TO} -j DROP", 0, "timed out at 10.77.0."),
    "refuses": Case(f"INPUT {TO} -j REJECT", 1, REFUSED),
    "resets new connections": Case(f"INPUT {TO} -j REJECT --reject-with tcp-reset", 1, REFUSED),
    "prohibits": Case(
        f"INPUT {TO} -j REJECT --reject-with icmp-admin-prohibited", 1, "[Errno 113]"
    ),
    "drops full packets": Case(f"INPUT {FROM} -m length --length 1400: -j DROP", 0, MTU),
    "drops full packets that leave": Case(
        f"OUTPUT {FROM} -m length --length 1400: -j DROP", 1, MTU
    ),
}


def run(slurm: SlurmCluster, output: Path, case: Case, port: int) -> Texts:
    """Returns the error of each task, by rank."""
    output.mkdir()
    with firewall(slurm, "n10", case.rule.format(port=port)):
        slurm.run(
            f"{STEP} {TASK} --timeout 2 --port-base {port}",
            env={"TASK_OUTPUT": str(output)},
        )
    return {path.name: json.loads(path.read_text()) for path in output.iterdir()}


@pytest.mark.newest
@pytest.mark.root
@pytest.mark.needs("iptables")
def test_each_task_names_the_one_that_does_not_answer(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    """The cases run at the same time, because they mostly wait."""
    with ThreadPoolExecutor(len(CASES)) as pool:
        running = {
            name: pool.submit(
                run,
                real_slurm,
                tmp_path / str(port),
                case,
                port,
            )
            for port, (name, case) in zip(range(24_001, 25_000, 2), CASES.items())
        }
    for name, case in CASES.items():
        told = running[name].result()
        asked = f"{WORKERS[case.silent]} does not answer {WORKERS[1 - case.silent]} at "
        assert sorted(told) == ["0", "1"], name
        for error in told.values():
            assert error.startswith(f"not ready: {asked}"), f"{name}: {error}"
            assert f": {case.why}" in error, name
            assert "; if a firewall between the nodes blocks the port, open it" in error
