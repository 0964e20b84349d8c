"""Faults of a start on the real Slurm: every surviving task must name the culprit, in time."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
from folders import HELPERS
from network_faults import packets_dropped
from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm

TASK = shlex.join([sys.executable, str(HELPERS / "slurm_ready.py")])
# Planes are known to every version: it is only to be ready that the tasks meet.
STEP = "-w n9,n10 -N2 --ntasks-per-node=2 -m plane=2"


def run(slurm: SlurmCluster, options: str, output: Path, step: str = STEP) -> List[Dict[str, Any]]:
    """Four tasks on two nodes; what came of each that was there to tell, by rank."""
    output.mkdir(exist_ok=True)
    slurm.run(f"srun {step} {TASK} {options}", env={"TASK_OUTPUT": str(output)}, check=False)
    outcomes = [json.loads(path.read_text()) for path in output.iterdir()]
    return sorted(outcomes, key=lambda outcome: int(outcome["rank"]))


def test_tasks_that_agree_are_ready(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    outcomes = run(real_slurm, "", tmp_path, "-w n8,n9,n10,n11 -N4 --ntasks-per-node=4 -m plane=4")
    assert [outcome["error"] for outcome in outcomes] == [None] * 16


MISSING = ("never starts", "exits early")  # after these the others wait for the whole timeout
# the fault, in which rank; the ranks that are left to tell; what they must tell
FAULTS = {
    "never starts": (2, [0, 1, 3], "1 of 4 tasks are missing.*: rank 2 (worker 2 on n10)"),
    "exits early": (3, [0, 1, 2], "1 of 4 tasks are missing.*: rank 3 (worker 3 on n10)"),
    "other jobs": (1, [0, 1, 2, 3], "disagree on the jobs.*: rank 1 (ps 0|worker 1"),
    "another version": (
        3,
        [0, 1, 2, 3],
        'disagree on the version of slurm_resolver: rank 3 (worker 3 on n10): "9.9.9"',
    ),
    "a wrong layout": (2, [0, 1, 2, 3], "disagree on where the ranks run: rank 2 ("),
    "a taken port": (3, [0, 1, 2, 3], "rank 3 (worker 3 on n10) cannot listen at port 23"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_by_every_task(
    real_slurm: SlurmCluster, tmp_path: Path, fault: str
) -> None:
    rank, left, told = FAULTS[fault]
    timeout = 15 if fault in MISSING else 30
    outcomes = run(real_slurm, f"--timeout {timeout} --fault '{fault}' --in-rank {rank}", tmp_path)
    assert [outcome["rank"] for outcome in outcomes] == left
    for outcome in outcomes:
        assert outcome["seconds"] < timeout + 5
        for part in told.split(".*"):
            assert any(choice in outcome["error"] for choice in part.split("|")), outcome["error"]


@pytest.mark.parametrize(
    ("rank", "left", "told"),
    [
        (2, [0, 1], "rank 2 (worker 2 on n10) came and ended again"),
        (0, [1, 2], "(local rank 0 on node n9) has ended before it answered rank"),
    ],
)
def test_a_task_that_ends_while_it_waits(
    real_slurm: SlurmCluster, tmp_path: Path, rank: int, left: List[int], told: str
) -> None:
    """Rank 3 never comes, so that the others wait; another one ends meanwhile."""
    ends = f"{TASK} --timeout 20 --fault 'ends while it waits' --in-rank {rank}"
    never = 'touch "$TASK_EVENTS/pid 3"; until [ -e "$TASK_OUTPUT/1" ]; do sleep 0.1; done; exit'
    script = f'if [ "$SLURM_PROCID" = 3 ]; then {never}; fi; exec {ends}'
    output, events = tmp_path / "output", tmp_path / "events"
    for folder in (output, events):
        folder.mkdir()
    real_slurm.run(
        f"srun {STEP} bash -c {shlex.quote(script)}",
        env={"TASK_OUTPUT": str(output), "TASK_EVENTS": str(events)},
        check=False,
    )
    outcomes = [json.loads(path.read_text()) for path in sorted(output.iterdir())]
    assert [outcome["rank"] for outcome in outcomes] == left
    for outcome in outcomes:
        assert told in outcome["error"]
        assert outcome["seconds"] < 20


def test_the_meeting_task_itself_ends(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    outcomes = run(real_slurm, "--timeout 10 --fault 'exits early' --in-rank 0", tmp_path)
    assert [outcome["rank"] for outcome in outcomes] == [1, 2, 3]
    for outcome in outcomes:
        assert "could not reach the meeting point n9:23" in outcome["error"]
        assert "(local rank 0 on node n9)" in outcome["error"]
        assert outcome["seconds"] < 10 + 5


def test_names_that_do_not_resolve(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    """The meeting point asks Slurm where the other node is, and calls it."""
    outcomes = run(real_slurm, "--timeout 20 --node-address=-nowhere", tmp_path)
    assert [outcome["error"] for outcome in outcomes] == [None] * 4


def test_names_that_do_not_resolve_where_slurm_cannot_be_asked(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    step = f"{STEP} env PATH=/nowhere"
    outcomes = run(real_slurm, "--timeout 15 --node-address=-nowhere", tmp_path, step)
    for outcome in outcomes[:2]:  # on the meeting point's node, which needs no name
        assert "2 of 4 tasks are missing" in outcome["error"]
    for outcome in outcomes[2:]:
        assert "could not reach the meeting point n9-nowhere:23" in outcome["error"]
        assert "known" in outcome["error"] or "resolution" in outcome["error"]
        assert "The node's name does not resolve on this one" in outcome["error"]


def test_a_node_whose_packets_are_dropped(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    with packets_dropped(real_slurm, "n10", "n9"):
        outcomes = run(real_slurm, "--timeout 15", tmp_path)
    for outcome in outcomes[:2]:
        assert "2 of 4 tasks are missing" in outcome["error"]
        assert "rank 2 (worker 2 on n10), rank 3 (worker 3 on n10)" in outcome["error"]
    for outcome in outcomes[2:]:
        assert "could not reach the meeting point n9:23" in outcome["error"]
        assert "timed out" in outcome["error"]
        assert outcome["seconds"] < 15 + 5
