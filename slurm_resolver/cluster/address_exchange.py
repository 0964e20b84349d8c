"""The addresses of a step's nodes where their names do not resolve: the tasks tell each other.

In clouds, in Kubernetes and behind a VPN Slurm's node names are often known to Slurm only. The
meeting point sees from which address each node comes, and on which of its own it is reached.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from slurm_resolver.cluster.layout import Layout
from slurm_resolver.cluster.meeting import meet
from slurm_resolver.cluster.meeting_point import rendezvous_of_layout
from slurm_resolver.cluster.node_address import BY_MEETING
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.ports import choose_ports
from slurm_resolver.errors import AddressError, RendezvousError
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.rendezvous.task_claim import claim_task
from slurm_resolver.slurm.step import SlurmStep

if TYPE_CHECKING:
    from slurm_resolver.rendezvous.gathering import Note

_LOOPBACK = "127.0.0.1"


def with_addresses(step: SlurmStep, layout: Layout, options: ClusterOptions) -> ClusterOptions:
    """Returns the options with each node's address, where the nodes' names shall not be used.

    That is with ``node_address="slurm"``; and without `node_address` where the name of the step's
    first node does not resolve here, nor, on that node itself, the second one's.

    Raises:
        AddressError: where the addresses cannot be exchanged: the tasks may not meet, or not all
            come in time; and in a child process of a task that has not exchanged them before.
    """
    asked = options.node_address == BY_MEETING
    may_meet = options.layout != "environment" and step.is_live and step.rank is not None
    if asked and not may_meet:
        raise AddressError(
            f"node_address={BY_MEETING!r}: the tasks tell each other the addresses of their nodes, "
            "which only the live tasks of a step can, and not with layout='environment'."
        )
    if not asked and (
        options.node_address is not None or not may_meet or _names_resolve(layout, step)
    ):
        return options
    if len(layout.nodes) == 1:
        return options._replace(node_address={layout.nodes[0]: _LOOPBACK})
    ports = choose_ports(step, max(layout.local_rank_of) + 1, options.port_base)
    rendezvous = rendezvous_of_layout(step, layout, ports.meeting_port, options)
    addresses = _exchange(step, layout, rendezvous, options.meeting_seconds)
    return options._replace(node_address=dict(zip(layout.nodes, addresses)))


def _names_resolve(layout: Layout, step: SlurmStep) -> bool:
    if layout.num_tasks == 1:
        return True  # it connects to nobody
    own = layout.node_of[step.require(SlurmStep.rank)]
    asked = 1 if own == 0 and len(layout.nodes) > 1 else 0
    try:
        socket.getaddrinfo(layout.nodes[asked], None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return True


def _exchange(step: SlurmStep, layout: Layout, rendezvous: Rendezvous, timeout: float) -> List[str]:
    """Returns the address of each node, as all tasks get it; child processes inherit it."""
    left = _left_by_parent(step, rendezvous)
    if left is not None:
        return left
    if not claim_task(rendezvous):
        raise AddressError(
            "the names of the step's nodes do not resolve here, and the other tasks can tell their "
            f"addresses only to the process that stands for rank {rendezvous.rank}: this one is "
            "its child, or a second program in the task. Make the resolver there first, and start "
            "this process after it; or give node_address."
        )
    names = [f"rank {rank} on {layout.nodes[n]}" for rank, n in enumerate(layout.node_of)]

    def decide(notes: Dict[int, Note]) -> Dict[str, Any]:
        return {"addresses": _addresses_of_nodes(notes, layout, rendezvous)}

    try:
        answer = meet(rendezvous, "addresses", names, {}, decide, timeout)
    except RendezvousError as error:
        raise AddressError(
            "the names of the step's nodes do not resolve on all of them, and the tasks could not "
            f"tell each other their addresses: {error} Have the names resolved, or give "
            "node_address the same in all tasks."
        ) from error
    addresses = list(map(str, answer.get("addresses") or ()))
    if len(addresses) != len(layout.nodes):
        raise AddressError(
            f"{rendezvous.name} told {len(addresses)} addresses of {len(layout.nodes)} nodes: all "
            "tasks need the same version of slurm_resolver."
        )
    os.environ[SlurmStep.exchanged_addresses.name] = " ".join((rendezvous.identity, *addresses))
    return addresses


def _left_by_parent(step: SlurmStep, rendezvous: Rendezvous) -> Optional[List[str]]:
    identity, *addresses = (step.exchanged_addresses or "").split() or [""]
    return addresses if identity == rendezvous.identity else None


def _addresses_of_nodes(
    notes: Dict[int, Note], layout: Layout, rendezvous: Rendezvous
) -> List[str]:
    """Returns for each node the address from which its tasks came, as most of them did.

    Raises:
        RendezvousError: for a node from which nobody has come over the network.
    """
    came_from: List[Counter[str]] = [Counter() for _ in layout.nodes]
    reached_at: Counter[str] = Counter()
    for rank, note in notes.items():
        if note["came_from"]:
            came_from[layout.node_of[rank]][note["came_from"]] += 1
            reached_at[note["reached_at"]] += 1
    came_from[layout.node_of[rendezvous.rank]] = reached_at
    for node, addresses in zip(layout.nodes, came_from):
        if not addresses:
            raise RendezvousError(f"no task has come from {node} over the network")
    return [addresses.most_common(1)[0][0] for addresses in came_from]
