"""Tasks whose resolver is told more than Slurm says: they meet as what they resolved to."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
from folders import HELPERS
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.slurm, pytest.mark.newest]

PROGRAM = shlex.join([sys.executable, str(HELPERS / "slurm_overridden.py")])


# what the resolver is told; the step's distribution; the rank of each SLURM_PROCID
@pytest.mark.parametrize(
    ("told", "distribution", "ranks"),
    [
        ("tasks_per_node", "block", [0, 1, 2, 3]),
        ("hooks", "cyclic", [0, 2, 1, 3]),
    ],
)
def test_all_are_ready_as_what_they_resolved_to(
    real_slurm: SlurmCluster, tmp_path: Path, told: str, distribution: str, ranks: list[int]
) -> None:
    step = f"-w n9,n10 -N2 --ntasks-per-node=2 -m {distribution}"
    done = real_slurm.run(
        f"srun {step} {PROGRAM} {told}", env={"TASK_OUTPUT": str(tmp_path)}, check=False
    )
    assert done.returncode == 0, done.stderr
    outcomes = read_outcomes(tmp_path)
    assert [outcome["rank"] for outcome in outcomes] == ranks


def read_outcomes(folder: Path) -> List[Dict[str, Any]]:
    """What each task made of it, by SLURM_PROCID."""
    outcomes = [json.loads((folder / str(number)).read_text()) for number in range(4)]
    for outcome in outcomes:
        assert outcome["node"] == outcome["hostname"]
        assert outcome["meets_as"] == outcome["rank"]
    assert sorted(outcome["index"] for outcome in outcomes) == [0, 1, 2, 3]
    assert [outcome["is_host"] for outcome in outcomes].count(True) == 1
    return outcomes
