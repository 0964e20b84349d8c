"""Faults of the network between the nodes of a real Slurm."""

from __future__ import annotations

import contextlib
import shlex
import sys
from typing import Iterator

from folders import HELPERS
from slurm_cluster import SlurmCluster


@contextlib.contextmanager
def packets_dropped(slurm: SlurmCluster, source: str, target: str) -> Iterator[None]:
    """Lets nothing from one node arrive at another: its packets go to a wrong hardware address."""
    address = slurm.run_on(source, f"getent ahostsv4 {target}").stdout.split()[0]
    route = slurm.run_on(source, f"ip -o route get {address}").stdout
    entry = f"{address} dev {route.split(' dev ')[1].split()[0]}"
    slurm.run_on(source, f"ip neigh replace {entry} lladdr 02:00:00:00:00:01 nud permanent")
    try:
        yield
    finally:
        slurm.run_on(source, f"ip neigh del {entry}")


@contextlib.contextmanager
def lossy(slurm: SlurmCluster, node: str, seconds: float, loss: float) -> Iterator[None]:
    """Lets every packet to and from a node take `seconds` each way, and loses a part of them."""
    with _relayed(slurm, node, seconds, loss):
        yield


@contextlib.contextmanager
def slow(slurm: SlurmCluster, node: str, rate: float, seconds: float = 0.0) -> Iterator[None]:
    """Lets a node's cable carry `rate` bytes a second each way, and each packet `seconds` late."""
    with _relayed(slurm, node, seconds, 0.0, rate):
        yield


@contextlib.contextmanager
def _relayed(slurm: SlurmCluster, node: str, *how: float) -> Iterator[None]:
    """Not every kernel has netem: what the node's cable carries passes through a process."""
    number = [one.name for one in slurm.nodes].index(node) + 1
    relay = shlex.join([sys.executable, str(HELPERS / "relay.py"), f"port{number}", *map(str, how)])
    process = slurm.popen(f"exec {relay}")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "relaying\n"
        yield
    finally:
        process.terminate()
        process.wait()
        slurm.run(f"ip link set port{number} master bridge0; ip link del relayed0", check=False)
