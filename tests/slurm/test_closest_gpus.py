"""`srun --gpu-bind=closest` on nodes of two sockets, each near two of the four GPUs."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
from folders import HELPERS
from slurm_cluster import Node, SlurmCluster, started
from slurm_installation import Installation
from two_sockets import GPUS, SOCKETS, TwoSockets

pytestmark = [
    pytest.mark.slurm,
    # Slurm really binds the tasks to these CPUs
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs"),
]

TASK = shlex.join([sys.executable, str(HELPERS / "slurm_task.py")])


@pytest.fixture(scope="module")
def two_sockets(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlurmCluster]:
    nodes = [Node(name, cpus=2, gpus=GPUS) for name in ("n1", "n2")]
    conf = [f"NodeName=n{i} NodeAddr=10.77.0.{i} {SOCKETS} Gres=gpu:{GPUS}" for i in (1, 2)]
    conf.append("TaskPlugin=task/affinity")
    directory = tmp_path_factory.mktemp("s")
    with started(
        TwoSockets(nodes, directory, extra_conf=conf, installation=installation)
    ) as cluster:
        yield cluster


# srun's options in an allocation of both nodes; by rank, the GPUs of each task
CASES: Dict[str, Any] = {
    "a task on each socket": ("-N1 -n2", ["01", "23"]),
    "two on each": ("-N1 -n4 -O --cpu-bind=map_cpu:0,0,1,1", ["01", "01", "23", "23"]),
    "one task a node": ("-N2 -n2", ["0123", "0123"]),
}


@pytest.mark.parametrize("case", CASES)
def test_tasks_keep_what_slurm_shows_them(
    two_sockets: SlurmCluster, tmp_path: Path, case: str
) -> None:
    options, gpus = CASES[case]
    two_sockets.run(
        f"salloc -N2 -n4 --gpus-per-node=4 srun --gpu-bind=closest {options} {TASK}",
        env={"TASK_OUTPUT": str(tmp_path)},
    )
    lines = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    lines.sort(key=lambda line: int(line["rank"]))
    found: List[str] = ["".join(line["cluster"]["self"]["gpus"]) for line in lines]
    assert found == gpus
