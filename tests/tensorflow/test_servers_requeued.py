"""A training with parameter servers whose job is requeued goes on from its last periodic save."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Dict

import pytest
from folders import HELPERS
from slurm_cluster import Node, SlurmCluster, started
from slurm_installation import Installation

keras_version = pytest.importorskip("keras").__version__
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.tensorflow,
    pytest.mark.skipif(keras_version.startswith("2."), reason="this TensorFlow has Keras 2"),
]

PROGRAM = [sys.executable, "-W", "ignore", str(HELPERS / "keras_servers_requeued.py")]
CONF = [
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=600",
    "PartitionName=urgent Nodes=ALL PriorityTier=9 PreemptMode=OFF",
]
ENDS = {
    "a signal to the batch file": "scancel --batch --signal=USR1 JOB",
    "a preemption": "sbatch -p urgent -N2 --exclusive -o /dev/null --wrap true",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_training_goes_on_from_its_last_save(
    installation: Installation, tmp_path: Path, name: str
) -> None:
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TASK_OUTPUT": str(tmp_path),
    }
    nodes = [Node("n1"), Node("n2")]
    cluster = SlurmCluster(nodes, tmp_path / "slurm", extra_conf=CONF, installation=installation)
    with started(cluster) as slurm:
        options = "-N 2 --tasks-per-node 2 --ps 1 --requeue -p low"
        command = f"slurm-resolver sbatch {options} -- {shlex.join(PROGRAM)} >job"
        slurm.run(command, cwd=tmp_path, env=environment)
        submitted = slurm.run("sbatch --parsable -o out job", cwd=tmp_path, env=environment)
        job = submitted.stdout.strip()

        def fields() -> Dict[str, str]:
            shown = slurm.run(f"scontrol --oneliner show job {job}").stdout
            return dict(re.findall(r"(\w+)=(\S*)", shown))

        def wait_for(*states: str, file: str = "") -> None:
            deadline = time.monotonic() + 400
            while fields()["JobState"] not in states and not (file and (tmp_path / file).exists()):
                assert time.monotonic() < deadline, (tmp_path / "out").read_text()
                time.sleep(0.2)

        ends = ("COMPLETED", "FAILED", "PREEMPTED", "TIMEOUT", "CANCELLED")
        wait_for(*ends, file="waits")
        slurm.run(ENDS[name].replace("JOB", job))
        wait_for(*ends)
        output = (tmp_path / "out").read_text()
        assert (fields()["JobState"], fields()["Restarts"]) == ("COMPLETED", "1"), output
    goes_on = re.findall(r"training goes on from \S+/(\S+), saved at epoch 1, step (\d+)", output)
    assert goes_on == [("ckpt-6", "80")], output  # after 180 of 195 steps
    assert re.search(r"^\d: signal +ok .* has a trap", output, re.M), output
    found = json.loads((tmp_path / "chief").read_text())
    assert found == {"steps": 300, "rows": [300.0] * 3}
