"""Which host the tasks connect to for each node, where it is not the node's name."""

from __future__ import annotations

from typing import Callable, Dict, Mapping, Optional, Sequence, Union

from slurm_resolver.cluster.tasks import Task, Tasks
from slurm_resolver.errors import AddressError

BY_SLURM = "slurm"  # as node_address: the addresses that Slurm itself uses

NodeAddress = Union[str, Mapping[str, str], Callable[[str], str]]


def host_for(node: str, node_address: Optional[NodeAddress] = None) -> str:
    """Returns the host to connect to for this node.

    Raises:
        AddressError: where `node_address` gives no usable host.
    """
    if node_address is None or node_address == BY_SLURM:
        return node
    if isinstance(node_address, str):
        return node + node_address
    if callable(node_address):
        host, source = node_address(node), f"node_address({node!r})"
    else:
        host, source = node_address.get(node, ""), f"node_address[{node!r}]"
    if not isinstance(host, str) or not host or any(c.isspace() or c in ",/" for c in host):
        raise AddressError(f"{source} is {host!r}; expected the host to connect to for this node.")
    # Brackets tell the colons of an IPv6 address from the one before the port.
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def check_addresses(tasks: Tasks, hosts: Sequence[str]) -> None:
    """Checks that every task has its own address.

    Several nodes may have the same host if their tasks have different ports.

    Raises:
        AddressError: for two tasks with the same address.
    """
    if len(set(hosts)) == len(hosts):
        return
    task_at: Dict[str, Task] = {}
    for task in tasks:
        other = task_at.setdefault(task.address, task)
        if other is not task:
            raise AddressError(
                f"node_address gives ranks {other.rank} and {task.rank} on the nodes {other.node} "
                f"and {task.node} the same address, {task.address}; expected a different host for "
                "every node."
            )
