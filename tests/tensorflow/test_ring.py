"""The order of TensorFlow's ring, as TensorFlow really goes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from folders import HELPERS
from slurm_cluster import SlurmCluster

from slurm_resolver.cluster.ring_order import index_order

pytestmark = pytest.mark.tensorflow


def test_tensorflow_visits_the_tasks_in_the_order_of_their_names() -> None:
    """A chief and eleven workers of two devices each, all in one process, and TensorFlow's log."""
    done = subprocess.run(
        [sys.executable, str(HELPERS / "tensorflow_ring.py"), "11"],
        env={**os.environ, "TF_CPP_VMODULE": "ring_alg=2", "TF_CPP_MIN_LOG_LEVEL": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    orders = re.findall(r"Subdiv 0 device order:((?:\s+/job:\S+)+)", done.stderr)
    assert orders, done.stderr[-2000:]
    tasks = ["chief/replica:0/task:0"]
    tasks += [f"worker/replica:0/task:{index}" for index in index_order(11)]
    expected = [f"/job:{task}/device:CPU:{number}" for task in tasks for number in range(2)]
    assert all(order.split() == expected for order in orders)


def busiest(slurm: SlurmCluster, output: Path, worker_order: str) -> float:
    """Returns what the busiest of two nodes sends in an all-reduce of four workers dealt cyclic.

    In units of the tensor's size; what is sent without any all-reduce is subtracted.
    """
    output.mkdir()
    size, times = 4_000_000, 10
    script = shlex.join([sys.executable, str(HELPERS / "slurm_ring.py")])
    slurm.run(
        "srun -w n9,n10 -N2 --ntasks-per-node=2 -m cyclic --kill-on-bad-exit=1 "
        f"{script} --worker-order {worker_order} --bytes {size} --times {times}",
        env={"TASK_OUTPUT": str(output)},
        timeout=300,
    )
    told = [json.loads(path.read_text()) for path in output.iterdir() if path.is_file()]
    assert sorted(task["index"] for task in told) == [0, 1, 2, 3]
    most: int = max(task["busy"] - task["idle"] for task in told)
    return most / (size * times)


@pytest.mark.slurm
@pytest.mark.newest
def test_the_busiest_node_sends_no_more_than_it_must(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    """By the counters of the nodes' interfaces: TCP and gRPC add about 0.3 % to the tensors."""
    optimum = 2 * (4 - 1) / 4
    assert optimum < busiest(real_slurm, tmp_path / "ring", "ring") < 1.05 * optimum
    assert busiest(real_slurm, tmp_path / "rank", "rank") > 1.95 * optimum
