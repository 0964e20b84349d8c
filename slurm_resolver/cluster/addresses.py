"""The addresses of the tasks, and that of the step's coordination service."""

from __future__ import annotations

import functools
import re
import socket
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_resolver.cluster.layout import Layout
from slurm_resolver.cluster.options import ClusterOptions, NodeAddress
from slurm_resolver.cluster.ports import Ports
from slurm_resolver.cluster.roles import Roles
from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.errors import AddressError
from slurm_resolver.slurm.hostlist import compress_hostlist, short_hostlist
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.slurm.variable_types import Nodes
from slurm_resolver.timeouts import Timeouts

Hosts = Mapping[str, str]  # from a node's name to the host to connect to
JobAddresses = dict[str, list[str]]  # the addresses of each job by index

# What to do about an address that does not answer.
_FIREWALL = "; if a firewall between the nodes blocks the port, open it"
_SLURMS = "--node-address slurm, or node_address='slurm' in the program"
_NODE_ADDRESS = f"; if Slurm has another address (scontrol show node), set {_SLURMS}"


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
    if node_address == "slurm":
        node_address = None  # a simulated step's node is this machine
        if not step.simulated:
            # All tasks spread their questions over up to ten seconds.
            delay = min(10.0, num_tasks / 100) * (step.rank or 0) / num_tasks
            node_address = _ask_slurm(compress_hostlist(sorted(nodes)), delay)
    if node_address is not None:
        return _hosts_from(node_address, nodes)
    if options.layout == "environment" or not step.is_live or num_tasks == 1:
        return dict(zip(nodes, nodes))
    return _names_that_resolve(step, nodes)


def _names_that_resolve(step: SlurmStep, nodes: Nodes) -> Hosts:
    # A node may resolve its own name only.
    asked = next((node for node in nodes if node != step.node_name), nodes[0])
    try:
        socket.getaddrinfo(asked, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if len(nodes) == 1:
            return {asked: "127.0.0.1"}
        raise AddressError(
            f"the name of node {asked} does not resolve here ({error}). To use Slurm's addresses, "
            f"set {_SLURMS}; or give a function or suffix for the name of another interface."
        ) from error
    return dict(zip(nodes, nodes))


def _hosts_from(node_address: NodeAddress, nodes: Nodes) -> Hosts:
    hosts = {node: _host_for(node, node_address) for node in nodes}
    host, count = Counter(hosts.values()).most_common(1)[0]
    if count > 1:
        same = [node for node in nodes if hosts[node] == host]
        raise AddressError(
            f"node_address gives the nodes {short_hostlist(same)} the same host, {host}; expected "
            "a different host for every node."
        )
    return hosts


def _host_for(node: str, node_address: NodeAddress) -> str:
    if isinstance(node_address, str):
        return node + node_address
    host = node_address(node) if callable(node_address) else node_address.get(node)
    if not isinstance(host, str) or not re.fullmatch(r"[^\s,/]+", host):
        raise AddressError(
            f"node_address gives {host!r} for node {node}; expected the host to connect to."
        )
    # Brackets tell the colons of an IPv6 address from the one before the port.
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


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


def make_addresses(layout: Layout, roles: Roles, hosts: Hosts, ports: Ports) -> JobAddresses:
    """Returns the addresses of each job by index."""
    host_of = list(map(hosts.__getitem__, layout.nodes))
    port_of = [f":{port}" for port in ports.by_local_rank]
    node_of = layout.node_of
    local_rank_of = layout.local_rank_of
    return {
        job: [host_of[node_of[rank]] + port_of[local_rank_of[rank]] for rank in ranks]
        for job, ranks in roles.items()
    }


def find_service(
    step: SlurmStep, options: ClusterOptions, hosts: Hosts, port: int
) -> ServiceAddress:
    """Returns the address of the step's coordination service, without whether it runs in this task.

    It runs in the task with local rank 0 on the step's first node. Slurm's variables decide which
    task that is, as tasks that disagree on the layout have to find each other too.

    Raises:
        EnvironmentValueError: if SLURM_PROCID is missing.
    """
    first_node = step.require(SlurmStep.nodes)[0]
    counts = step.require(SlurmStep.tasks_per_node)
    remedy = ""
    if not step.simulated:
        # The addresses may be Slurm's already.
        remedy = _FIREWALL + (_NODE_ADDRESS if options.node_address != "slurm" else "")
    return ServiceAddress(
        host=hosts[first_node],
        port=port,
        node=first_node,
        identity=identity_of(step),
        num_tasks=sum(counts),
        rank=step.require(SlurmStep.rank),
        hosts_service=False,
        grace=step.network_grace or Timeouts.grace,
        remedy=remedy,
    )


def identity_of(step: SlurmStep) -> str:
    """Returns a name for this start of the step, as a requeued job keeps its job and step id."""
    return f"{step.cluster_name or ''} {step.name} start {step.restart_count or 0}".lstrip()
