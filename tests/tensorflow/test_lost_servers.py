"""A parameter server and a chief that are lost on a real Slurm: the step starts again."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest
from folders import HELPERS
from slurm_cluster import Node, SlurmCluster, started
from slurm_installation import Installation

pytestmark = [pytest.mark.slurm, pytest.mark.tensorflow, pytest.mark.newest]

ENVIRONMENT = {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}
PRINT = "slurm-resolver sbatch --no-check --nodes 3 --ps 1 --restarts 2 -- python"


def test_a_lost_server_and_a_lost_chief_cost_no_more_than_what_was_not_saved(
    installation: Installation, tmp_path: Path
) -> None:
    """Nothing can go on without them, as it can without a worker."""
    nodes = [Node("n8"), Node("n9"), Node("n10")]
    cluster = SlurmCluster(nodes, tmp_path / "slurm", installation=installation)
    with started(cluster) as slurm:
        print_it = f"{PRINT} {HELPERS / 'slurm_servers.py'} {tmp_path}"
        (tmp_path / "job").write_text(slurm.run(print_it, env=ENVIRONMENT).stdout)
        slurm.run("sbatch -o out job", cwd=tmp_path, env=ENVIRONMENT)
        deadline, state = time.monotonic() + 300, ""
        while state not in ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL"):
            told = (tmp_path / "out").read_text() if (tmp_path / "out").exists() else ""
            assert time.monotonic() < deadline, told
            time.sleep(0.1)
            shown = slurm.run("scontrol --oneliner show job").stdout
            state = re.findall(r" JobState=(\w+)", shown)[0]
        output = (tmp_path / "out").read_text()
        assert (state, *re.findall(r" ExitCode=(\S+)", shown)) == ("COMPLETED", "0:0"), output
    # saved at every tenth step; lost at 25 and 45
    assert re.findall(r"begins after (\d+)$", output, re.M) == ["0", "20", "40"], output
    assert re.findall(r"^\d: (ends after .*)$", output, re.M) == ["ends after 80"], output
    lost = re.findall(r"; first failure: rank (\d) on \w+ at \S+, SIGKILL$", output, re.M)
    jobs = {"1": "ps", "0": "chief"}
    assert [jobs.get(rank) for rank in lost] == ["ps", "chief"], output
