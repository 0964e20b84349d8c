"""The hosts that tasks connect to, where these are not the names of the nodes."""

from __future__ import annotations

from typing import Callable, Dict, Mapping, Optional, Sequence, Union

from slurm_resolver.cluster.tasks import Task, Tasks
from slurm_resolver.errors import AddressError

NodeAddress = Union[str, Mapping[str, str], Callable[[str], str]]


def host_for(node: str, node_address: Optional[NodeAddress] = None) -> str:
    """Returns the host that others connect to when they want this node."""
    if node_address is None:
        return node
    if isinstance(node_address, str):
        return node + node_address
    if callable(node_address):
        host, how = node_address(node), f"node_address({node!r})"
    else:
        host, how = node_address.get(node, ""), f"node_address[{node!r}]"
    if not isinstance(host, str) or not host or any(c.isspace() or c in ",/" for c in host):
        raise AddressError(f"{how} is {host!r}; expected the host to connect to for this node.")
    # An IPv6 address keeps its colons apart from the port's in brackets.
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def check_addresses(tasks: Tasks, hosts: Sequence[str]) -> None:
    """Looks for two tasks with one address.

    Two nodes behind one host are only right where their tasks have different ports.

    Raises:
        AddressError: naming the tasks.
    """
    if len(set(hosts)) == len(hosts):
        return
    first: Dict[str, Task] = {}
    for task in tasks:
        other = first.setdefault(task.address, task)
        if other is not task:
            raise AddressError(
                f"node_address gives ranks {other.rank} and {task.rank} on the nodes {other.node} "
                f"and {task.node} one address, {task.address}; expected a host of its own for "
                "every node."
            )
