"""`slurm-resolver env` in the tasks of a real step."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm


def test_on_a_real_step(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    # a file each: srun mixes what several tasks print in longer lines than 1,024 bytes
    command = f"{sys.executable} -m slurm_resolver env --json"
    real_slurm.run(
        f"srun -w n9,n10 -N2 --ntasks-per-node=2 -m cyclic --output={tmp_path}/%t {command}"
    )
    reports = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert len(reports) == 4
    for report in reports:
        assert re.match(r"slurm\S* \d+\.\d+", report["versions"]["srun"])
        rank = int(report["variables"]["SLURM_PROCID"])
        node = report["variables"]["SLURMD_NODENAME"]
        index = [0, 2, 1, 3][rank]  # by the ring, node after node
        assert report["cluster"]["this task"] == f"rank {rank} on {node}, worker {index}"
        assert node == ("n9", "n10")[rank % 2]
