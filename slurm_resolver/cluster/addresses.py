"""The addresses of the tasks."""

from __future__ import annotations

import functools
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.errors import AddressError
from slurm_resolver.slurm.hostlist import compress_hostlist
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.slurm.variable_types import Nodes

Hosts = Mapping[str, str]  # from a node's name to the host to connect to
JobAddresses = dict[str, list[str]]  # the addresses of each job by index

_SLURMS = "--node-address slurm, or node_address='slurm' in the program"
# What to do about an address that does not answer.
NODE_ADDRESS = f"; if Slurm has another address (scontrol show node), set {_SLURMS}"


@dataclass(frozen=True)
class Task:
    """One task: its rank, its node and local rank there, its job and index, and its address."""

    rank: int
    node: str
    local_rank: int
    job: str
    index: int
    address: str


def find_hosts(step: SlurmStep, nodes: Nodes, num_tasks: int, options: ClusterOptions) -> Hosts:
    """Returns by node the host that others connect to: the node's name, or what options say.

    With ``node_address="slurm"`` every task asks Slurm once for the addresses (NodeAddr).

    Raises:
        AddressError: if Slurm does not answer, `node_address` gives no usable host or two nodes the
            same one, or the names do not resolve and no `node_address` is given.
    """
    node_address = options.node_address
    if node_address == "slurm" and not step.simulated:  # whose node is this machine
        # All tasks spread their questions over up to ten seconds.
        delay = min(10 / num_tasks, 0.01) * (step.rank or 0)
        node_address = _ask_slurm(compress_hostlist(sorted(nodes)), delay)
    if node_address is None and step.is_live and num_tasks > 1 and options.layout != "environment":
        # A node may resolve its own name only.
        asked = next((node for node in nodes if node != step.node_name), nodes[0])
        try:
            socket.getaddrinfo(asked, None, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if len(nodes) == 1:
                return {asked: "127.0.0.1"}
            raise AddressError(
                f"the name of node {asked} does not resolve here ({error}). To use Slurm's "
                f"addresses, set {_SLURMS}; or give a function or suffix for the name of another "
                "interface."
            ) from error
    if node_address is None or node_address == "slurm":
        return dict(zip(nodes, nodes))
    if isinstance(node_address, str):
        node_address = {node: node + node_address for node in nodes}
    find = node_address if callable(node_address) else node_address.get
    hosts: dict[str, str] = {}
    taken: set[str] = set()
    for node in nodes:
        host = find(node)
        if not isinstance(host, str) or not re.fullmatch(r"[^\s,/]+", host) or host in taken:
            raise AddressError(
                f"node_address gives {host!r} for node {node}; expected the host to connect to, "
                "and a different one for every node."
            )
        taken.add(host)
        # Brackets tell the colons of an IPv6 address from the one before the port.
        hosts[node] = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return hosts


@functools.cache
def _ask_slurm(nodes: str, delay: float) -> Hosts:
    from slurm_resolver.slurm.scontrol import show_nodes  # few steps need it

    time.sleep(delay)
    try:
        return show_nodes("NodeAddr", nodes)
    except OSError as error:
        raise AddressError(
            f"node_address='slurm': Slurm did not give the addresses of {nodes}: {error}. Pass a "
            "function or mapping from node names to hosts instead."
        ) from error


def identity_of(step: SlurmStep) -> str:
    """Returns a name for this start of the step, as a requeued job keeps its job and step id."""
    return f"{step.cluster_name or ''} {step.name} start {step.restart_count or 0}".lstrip()
