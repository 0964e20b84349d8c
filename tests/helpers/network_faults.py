"""Network faults between the nodes of a real Slurm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from slurm_cluster import SlurmCluster


@contextlib.contextmanager
def packets_dropped(slurm: SlurmCluster, source: str, target: str) -> Iterator[None]:
    """Drops all packets from one node to another by sending them to a wrong hardware address.

    Only root can: mark the test `root`.
    """
    address = slurm.run_on(source, f"getent ahostsv4 {target}").stdout.split()[0]
    route = slurm.run_on(source, f"ip -o route get {address}").stdout
    entry = f"{address} dev {route.split(' dev ')[1].split()[0]}"
    slurm.run_on(source, f"ip neigh replace {entry} lladdr 02:00:00:00:00:01 nud permanent")
    try:
        yield
    finally:
        slurm.run_on(source, f"ip neigh del {entry}")


@contextlib.contextmanager
def firewall(slurm: SlurmCluster, node: str, *rules: str) -> Iterator[None]:
    """Adds rules of iptables on a node, such as "INPUT -p tcp --dport 23001 -j DROP".

    Mark the test `root` and `needs("iptables")`.
    """
    for rule in rules:
        slurm.run_on(node, f"iptables --append {rule}")
    try:
        yield
    finally:
        for rule in rules:
            slurm.run_on(node, f"iptables --delete {rule}")
