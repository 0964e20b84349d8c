"""Heterogeneous jobs whose step is started again: who plays which part on which nodes then."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List

import pytest
from slurm_cluster import Node, SlurmCluster, started
from slurm_installation import Installation

pytestmark = pytest.mark.slurm

ENVIRONMENT = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
NODES = [Node(f"g{i}", cpus=4, gpus=2) for i in range(1, 4)] + [Node("c1"), Node("c2")]
CONF = [  # each component gets the nodes of its own partition
    "PartitionName=gpu Nodes=g[1-3] OverSubscribe=FORCE:16",
    "PartitionName=cpu Nodes=c[1-2] OverSubscribe=FORCE:16",
]
PRINT = (
    "slurm-resolver sbatch --no-check --exec -N 2 --tasks-per-node 2 --gpus-per-node 2 -p gpu "
    "--ps 1 --ps-nodes 1 --ps-partition cpu --restarts 3 --spare-nodes 1 --ps-spare-nodes 1"
)
# The first start waits for a node to fail, the second for its chief to be killed; the third tells
# what each task sees.
TASK = """\
touch start-$SLURM_PROCID-$(ls -d failed* 2>/dev/null | wc -l)
await() { until [ -e "$1" ]; do sleep 0.1; done; }
[ -e failed-1 ] || exec sleep 600
if [ ! -e failed-2 ]; then
    [ "$SLURM_PROCID" = 4 ] || exec sleep 600
    await go-2; touch failed-2; kill -9 $$
fi
echo "$TF_CONFIG ${CUDA_VISIBLE_DEVICES-}"
"""

NOW_ON = (
    "g[1-2] and c2; left out: c1 (no longer the job's); came in: c2",
    "g[1,3] and c2; left out: g2 (MIXED+DRAIN); came in: g3",
)
# One component has a node to lose, and one has none.
IN_PARTS = """\
#!/bin/bash
#SBATCH --no-kill --nodes=2 --partition=gpu
#SBATCH hetjob
#SBATCH --no-kill --nodes=1 --partition=cpu --nodelist=c2
exec sleep 600
"""


@pytest.fixture(scope="module")
def slurm(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlurmCluster]:
    """Three nodes with GPUs and two without."""
    directory = tmp_path_factory.mktemp("mixed")
    cluster = SlurmCluster(NODES, directory, extra_conf=CONF, installation=installation)
    with started(cluster) as slurm:
        yield slurm


def wait_for(condition: Callable[[], bool], told: Callable[[], str]) -> None:
    """Returns once the condition holds."""
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.1)


def jobs(slurm: SlurmCluster) -> List[Dict[str, str]]:
    """The fields of each component."""
    shown = slurm.run("scontrol --oneliner show job").stdout.splitlines()
    return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in shown]


def test_the_step_is_started_again_with_the_spare_nodes_of_each_component(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    (tmp_path / "task").write_text(TASK)
    text = slurm.run(f"{PRINT} -- bash task", env=ENVIRONMENT).stdout
    (tmp_path / "job").write_text(text)
    slurm.run("shellcheck job", cwd=tmp_path)
    slurm.run("sbatch -o out job", cwd=tmp_path, env=ENVIRONMENT)

    def output() -> str:
        return (tmp_path / "out").read_text() if (tmp_path / "out").exists() else ""

    def starts(number: int) -> int:
        return len(list(tmp_path.glob(f"start-*-{number}")))

    wait_for(lambda: starts(0) == 6, output)
    (tmp_path / "failed-1").touch()
    slurm.run("scontrol update NodeName=c1 State=DOWN Reason=test")
    wait_for(lambda: starts(1) == 6, output)
    slurm.run("scontrol update NodeName=g2 State=DRAIN Reason=test")
    (tmp_path / "go-2").touch()
    wait_for(lambda: jobs(slurm)[0]["JobState"] not in ("RUNNING", "PENDING"), output)
    assert [job["JobState"] for job in jobs(slurm)] == ["COMPLETED"] * 2, output()
    said = re.findall(r"^slurm-resolver supervise: (.*)$", output(), re.M)
    assert [re.sub(r" at \S+,", ",", line) for line in said] == [
        f"restart 1 of 3; now on {NOW_ON[0]}; first failure: node c1, node failure",
        f"restart 2 of 3; now on {NOW_ON[1]}; first failure: rank 4 on c2, SIGKILL",
        "ended with status 0, after 2 restarts",
    ], output()
    told = dict(re.findall(r"^(\d): (\{.*\} ?.*)$", output(), re.M))
    assert sorted(told) == list("012345")
    configs = {rank: json.loads(text[: text.rindex("}") + 1]) for rank, text in told.items()}
    nodes = {
        name: [host.partition(":")[0] for host in hosts]
        for name, hosts in configs["0"]["cluster"].items()
    }
    assert nodes == {"chief": ["c2"], "ps": ["c2"], "worker": ["g1", "g1", "g3", "g3"]}
    assert all(config["cluster"] == configs["0"]["cluster"] for config in configs.values())
    gpus = {rank: text[text.rindex("}") + 1 :].strip() for rank, text in told.items()}
    assert gpus == {"0": "0", "1": "1", "2": "0", "3": "1", "4": "", "5": ""}


def test_a_component_whose_only_node_fails_is_requeued_alone(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    """Why sbatch --restarts wants two nodes in each, and writes --no-requeue: it would so wait."""
    (tmp_path / "job").write_text(IN_PARTS)
    job = slurm.run("sbatch --parsable -o /dev/null job", cwd=tmp_path).stdout.strip()

    def states() -> List[str]:
        return [one["JobState"] for one in jobs(slurm) if one.get("HetJobId") == job]

    wait_for(lambda: states() == ["RUNNING", "RUNNING"], lambda: str(jobs(slurm)))
    slurm.run("scontrol update NodeName=c2 State=DOWN Reason=test")
    wait_for(lambda: states() == ["RUNNING", "PENDING"], lambda: str(jobs(slurm)))
    slurm.run(f"scancel {job}")
