"""Every task resolves the true cluster on a real Slurm, whatever order a topology gives the nodes.

From 26.05 on, block distribution assigns ranks to nodes in the topology's order. The node list and
SLURM_NODEID keep their own order. SLURM_TOPOLOGY_ADDR_PATTERN does not reveal this: it describes
the cluster's topology, but a partition may have another one (topology.yaml(5)).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from by_version import expected
from captured import Captured
from kinds import Strings, Texts
from local_run import printed_batch_file
from slurm_cluster import SlurmCluster
from slurm_conf import Node, numbered
from slurm_fixture import started
from slurm_installation import Installation
from slurm_jobs import ENVIRONMENT
from task_accounts import assert_right, run, run_and_resolve

TREE = """\
SwitchName=s0 Switches=s[1-2]
SwitchName=s1 Nodes=n8,n10,n12
SwitchName=s2 Nodes=n9,n11,n13
"""
BLOCKS = """\
BlockName=b1 Nodes=n8,n10
BlockName=b2 Nodes=n9,n11
BlockName=b3 Nodes=n12,n13
BlockSizes=2
"""
# A cluster without a topology whose partition has one.
YAML = """\
- topology: plain
  cluster_default: true
  flat: true
- topology: other
  cluster_default: false
"""
YAML_TREE = f"""{YAML}
  tree:
    switches:
      - {{switch: s0, children: "s[1-2]"}}
      - {{switch: s1, nodes: "n8,n10,n12"}}
      - {{switch: s2, nodes: "n9,n11,n13"}}
"""
YAML_ALPHA = f"""{YAML}
  flat:
    alpha_step_rank: true
"""


NODES = numbered(8, 13)


class Topology(NamedTuple):
    """A cluster's nodes and files, and the SLURM_TOPOLOGY_ADDR_PATTERN of its tasks."""

    files: Texts
    conf: Strings
    pattern: str
    nodes: Sequence[Node] = NODES


OTHER = "PartitionName=p Nodes=ALL Default=YES DefaultTime=10 OverSubscribe=FORCE Topology=other"


# The first node is first in both orders, so its tasks cannot see that the orders differ.
# An order by name matters only for dynamic nodes, because the nodes in slurm.conf are sorted.
# srun learns the addresses of dynamic nodes from messages that only auth/slurm signs.
BY_NAME = Topology(
    {"topology.yaml": YAML_ALPHA, "slurm.key": "a key for this cluster of one test alone"},
    [OTHER, "AuthType=auth/slurm", "CredType=cred/slurm"],
    "node",
    [Node(name, dynamic=True) for name in ("a1", "b2", "a2", "b1", "c2", "c1")],
)
TREE_CONF = Topology(
    {"topology.conf": TREE}, ["TopologyPlugin=topology/tree"], "switch.switch.node"
)
BLOCK_CONF = Topology({"topology.conf": BLOCKS}, ["TopologyPlugin=topology/block"], "block.node")

TOPOLOGIES = {
    "22.05": {"tree": TREE_CONF},
    "23.11": {"tree": TREE_CONF, "block": BLOCK_CONF},
    "26.05": {
        "tree": TREE_CONF,
        "block": BLOCK_CONF,
        "the partition's tree": Topology({"topology.yaml": YAML_TREE}, [OTHER], "node"),
        "flat, by name": BY_NAME,
    },
}
# WIDE stands for the first four nodes, and {0} to {5} for single nodes. A block has two nodes.
# Each node has two CPUs or more, and some nodes have more tasks than others.
STEPS = {
    "default": "srun WIDE -n6 TASK",
    "block": "srun WIDE -n6 -m block:cyclic TASK",
    "part": "salloc WIDE -n8 srun -N3 -n5 TASK",
    "segments": "srun WIDE --segment=2 -n6 TASK",
    "heterogeneous": "srun -N2 -n2 -w {4},{5} TASK : WIDE -n6 TASK",
    "cyclic": "srun WIDE -n6 -m cyclic TASK",
    "plane": "srun WIDE -n6 -O -m plane=2 TASK",
}
# How tasks find the layout, and whether block follows the node list. No variable shows whether a
# component has another distribution. 24.11 has segments, but not on nodes chosen by name.
BY_LIST = {
    **dict.fromkeys(("default", "block", "part", "cyclic", "plane"), "environment"),
    "heterogeneous": "rendezvous",
}
BY_TOPOLOGY = {
    **BY_LIST,
    **dict.fromkeys(("default", "block", "part", "segments"), "rendezvous"),
}
SOURCES = {"22.05": BY_LIST, "26.05": BY_TOPOLOGY}
IN_LIST_ORDER = {"22.05": True, "26.05": False}

LONGEST = 45.0  # seconds; tasks wait 60 s for missing tasks


@pytest.fixture(params=sorted({kind for kinds in TOPOLOGIES.values() for kind in kinds}))
def cluster(
    request: pytest.FixtureRequest, installation: Installation, tmp_path: Path
) -> Iterator[SlurmCluster]:
    """A cluster of six nodes whose topology and node list have different orders."""
    topology = expected(TOPOLOGIES, installation).get(request.param)
    if topology is None:
        pytest.skip(f"Slurm {installation.version} has no such topology")
    for name, text in topology.files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    slurm = SlurmCluster(
        topology.nodes, tmp_path, extra_conf=topology.conf, installation=installation
    )
    with started(slurm):
        assert (
            slurm.run("srun -n1 printenv SLURM_TOPOLOGY_ADDR_PATTERN").stdout
            == f"{topology.pattern}\n"
        )
        yield slurm


def test_every_task_knows_the_true_cluster(
    cluster: SlurmCluster, installation: Installation, tmp_path: Path, capsys: Captured
) -> None:
    names = [node.name for node in cluster.nodes]
    wide = f"-N4 -w {','.join(names[:4])}"
    used = {}
    for step, source in expected(SOURCES, installation).items():
        command = STEPS[step].format(*names).replace("WIDE", wide)
        output = tmp_path / step / "output"
        output.mkdir(parents=True)
        if source == "environment":
            lines = run_and_resolve(cluster, command, output)
        else:
            lines = run(cluster, command, output, timeout=LONGEST)
        assert_right(lines)
        assert {line["cluster"]["layout_source"] for line in lines} == {source}
        used[step] = list(dict.fromkeys(line["host"] for line in lines))
    # If both orders were the same, this test would prove nothing.
    assert (used["default"] == names[:4]) is expected(IN_LIST_ORDER, installation)
    assert used["cyclic"] == names[:4]
    # With one task per node, srun's own default would be cyclic.
    file = tmp_path / "train.sbatch"
    file.write_text(printed_batch_file("-N 4 --no-check", "printenv SLURMD_NODENAME", capsys))
    placed = cluster.run(f"salloc {wide} bash {file}", env=ENVIRONMENT).stdout.splitlines()
    assert [line.split()[1] for line in sorted(placed)] == used["default"]
