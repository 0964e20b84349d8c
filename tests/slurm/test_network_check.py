"""What `slurm-resolver check` says of the network on the real Slurm, with faults made for real.

GPUs are stand-ins here, of which Slurm sets the variables; NCCL's choice is computed by its rules.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

import pytest
from network_faults import slow
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.newest]

CHECK = shlex.join([sys.executable, "-m", "slurm_resolver", "check", "--json"])
THREE = "-w n8,n9,n10 -N3 -n3"
GPUS = f"{THREE} --gpus-per-node=1"


def run(
    slurm: SlurmCluster, step: str, environ: Dict[str, str], tmp_path: Path
) -> Dict[str, Dict[str, str]]:
    """Runs a step in which NCCL, of which only the version is asked, is one before 2.28."""
    environ = dict(environ)
    version = environ.pop("version", "2.27.7")
    folder = tmp_path / f"nvidia_nccl_cu13-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Name: nvidia-nccl-cu13\nVersion: {version}\n")
    step, _, arguments = step.partition(" CHECK ")
    environ["PYTHONPATH"] = str(tmp_path)
    done = slurm.run(f"srun {step} {CHECK} {arguments}", env=environ, timeout=120, check=False)
    return {check["id"]: check for check in json.loads(done.stdout)["checks"]}


@contextlib.contextmanager
def interfaces(slurm: SlurmCluster, made: Dict[str, List[str]]) -> Iterator[None]:
    """Lets nodes have further interfaces: a bridge, by name and address, with a cable of its own.

    One with a carrier: a bridge has none where nothing is connected to it.
    """
    for node, names in made.items():
        for number, (name, address) in enumerate(one.split() for one in names):
            slurm.run_on(
                node,
                f"ip link add {name} type bridge && ip addr add {address} dev {name} && "
                f"ip link add veth-a{number} type veth peer name veth-b{number} && "
                f"ip link set veth-a{number} master {name} addrgenmode none up && "
                f"ip link set veth-b{number} addrgenmode none up && ip link set {name} up",
            )
    try:
        yield
    finally:
        for node, names in made.items():
            for number, one in enumerate(names):
                slurm.run_on(node, f"ip link del {one.split()[0]}; ip link del veth-a{number}")


@contextlib.contextmanager
def renamed(slurm: SlurmCluster, node: str, name: str, to: str) -> Iterator[None]:
    rename = "ip link set {0} down; ip link set {0} name {1}; ip link set {1} up"
    slurm.run_on(node, rename.format(name, to))
    try:
        yield
    finally:
        slurm.run_on(node, rename.format(to, name))


VIRBR, DOCKER, BRIDGE = "virbr0 192.168.122.1/24", "docker0 172.17.0.1/16", "br-7f 172.18.0.1/16"
LINE = "before srun: export NCCL_SOCKET_IFNAME="

# By what is wrong: interfaces that nodes have, the step, its variables, and what is said: nothing
# where there is nothing to say.
CASES: Dict[str, Tuple[Dict[str, List[str]], str, Dict[str, str], List[str]]] = {
    "no fault": ({}, GPUS, {}, []),
    "docker0, which NCCL passes over": ({"n9": [DOCKER], "n10": [DOCKER]}, GPUS, {}, []),
    "a bridge on one node": (
        {"n9": [BRIDGE]},
        GPUS,
        {},
        ["NCCL takes br-7f on n9, which does not lead to the other nodes (n", f"{LINE}=eth0"],
    ),
    "virbr0 on two, at the same address": (
        {"n8": [VIRBR], "n9": [VIRBR]},
        GPUS,
        {},
        ["NCCL takes virbr0 on n[8-9], which does not lead", f"{LINE}=eth0"],
    ),
    "virbr0, which a newer NCCL passes over": (
        {"n8": [VIRBR], "n9": [VIRBR]},
        GPUS,
        {"version": "2.28.3"},
        [],
    ),
    "the same, and no GPU": ({"n9": [BRIDGE]}, THREE, {}, []),
    "the same, on one node": ({"n9": [BRIDGE]}, "-w n9 -N1 -n2 --gpus=2", {}, []),
    "the same, and parameter servers": (
        {"n9": [BRIDGE]},
        f"{GPUS} CHECK --jobs ps=1,worker=-1",
        {},
        [],
    ),
    "the same, set right": ({"n9": [BRIDGE]}, GPUS, {"NCCL_SOCKET_IFNAME": "=eth0"}, []),
    "the same, passed over": ({"n9": [BRIDGE]}, GPUS, {"NCCL_SOCKET_IFNAME": "^br,lo"}, []),
    "set wrong": (
        {"n9": [BRIDGE]},
        GPUS,
        {"NCCL_SOCKET_IFNAME": "br"},
        [
            "NCCL takes br-7f on n9 by NCCL_SOCKET_IFNAME=br, which does not lead",
            "NCCL finds no interface on n[8,10] by NCCL_SOCKET_IFNAME=br, and fails",
            f"{LINE}=eth0",
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_interfaces(real_slurm: SlurmCluster, name: str, tmp_path: Path) -> None:
    made, step, environ, told = CASES[name]
    with interfaces(real_slurm, made):
        checks = run(real_slurm, step, environ, tmp_path)
    result = checks["interfaces"]
    assert (result["status"] == "warning") == bool(told), result
    for words in told:
        assert words in result["detail"]
    if not told and "-N3" in step:
        assert result["detail"] == "eth0 of n[8-10] leads to the other nodes"
    assert checks["speed"]["status"] == "ok", checks["speed"]


def test_nodes_that_name_it_differently(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    with renamed(real_slurm, "n10", "eth0", "enp1s0"):
        found = run(real_slurm, GPUS, {}, tmp_path)["interfaces"]
        assert found["status"] == "ok"
        assert found["detail"] == "eth0 of n[8-9], enp1s0 of n10 lead to the other nodes"
        with interfaces(real_slurm, {"n9": [BRIDGE]}):
            (tmp_path / "bridge").mkdir()
            found = run(real_slurm, GPUS, {}, tmp_path / "bridge")["interfaces"]
        assert found["detail"].endswith(f"{LINE}=eth0,enp1s0")
        # n10 has an eth0 as well, of another kind
        with interfaces(real_slurm, {"n10": ["eth0 10.9.9.1/24"]}):
            (tmp_path / "eth0").mkdir()
            found = run(real_slurm, GPUS, {}, tmp_path / "eth0")["interfaces"]
        assert "NCCL takes eth0 on n10, which does not lead" in found["detail"]
        assert "no value is right on every node" in found["detail"]
        assert "NCCL_SOCKET_IFNAME==enp1s0 on n10" in found["detail"]


def test_the_slow_node_is_named(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    """A link of 10 Mbit/s, and 10 ms late, beside two that are a hundred times faster or more."""
    with slow(real_slurm, "n9", 1.25e6, seconds=0.01):
        speed = run(real_slurm, THREE, {}, tmp_path)["speed"]
    assert speed["status"] == "warning"
    median = r"\(median \d+ MB/s\), "
    assert re.match(
        rf"n9 sends [01]\.\d MB/s {median}receives [01]\.\d MB/s {median}answers in \d\d+\.\d ms ",
        speed["detail"],
    )
    assert speed["detail"].endswith("(sbatch --exclude=n9)")
    assert "n8" not in speed["detail"]
    assert "n10" not in speed["detail"]
