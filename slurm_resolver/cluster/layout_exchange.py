"""The layout of a step whose variables do not describe it: the tasks tell each other.

Every task knows its own rank, node and local rank for sure. Together these are the layout.
"""

from __future__ import annotations

import json
import os
import zlib
from base64 import b64decode, b64encode
from typing import Any, Dict, List, Optional, Sequence, Tuple

from slurm_resolver.cluster.addresses import Hosts, find_service, identity_of
from slurm_resolver.cluster.components import ranks_of_components
from slurm_resolver.cluster.layout import Layout, local_ranks, nodes_and_counts
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.ports import choose_ports
from slurm_resolver.coordination.client import connect
from slurm_resolver.errors import LayoutError, RendezvousError
from slurm_resolver.slurm.step import SlurmStep

_LONGEST_VALUE = 100_000  # characters; Linux takes 131,072 bytes for a variable

# What a task says of itself: its node's name, local rank and node id.
Place = Tuple[str, int, Optional[int]]
# The order of the step's nodes by SLURM_NODEID, and by rank the node id.
Known = Tuple[List[int], List[int]]


def exchange_layout(step: SlurmStep, options: ClusterOptions, hosts: Hosts) -> Layout:
    """Returns the layout that the tasks report to each other. All tasks must call it.

    The answer stays in SLURM_RESOLVER_LAYOUT, where later calls and child processes find it.

    Raises:
        LayoutError: where not all tasks call it in time, or their reports do not fit
            SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE.
    """
    nodes, counts = nodes_and_counts(step)
    known = _left_by_earlier_call(step)
    if known is None:
        port = choose_ports(step, max(counts), options.port_base).meeting_port
        service = find_service(step, sum(counts), port, hosts)
        place = (step.node_name, step.local_rank, step.node_id)
        try:
            places = connect(service).gather(
                "the exchange of the layout", place, options.meeting_seconds
            )
            known = _layout_from_places(places, nodes, counts)
        except RendezvousError as error:
            raise LayoutError(
                "the variables do not say where the ranks of this step run, and the tasks could "
                f"not tell each other: {error}"
            ) from error
        _leave_for_children(step, known)
    order, node_of = known
    names = tuple(nodes[index] for index in order)
    components = ranks_of_components(step, names, node_of)
    # The tasks of a heterogeneous step have different values of SLURM_DISTRIBUTION.
    by_group = {c.group: c.distribution or "block" for c in step.components}
    distribution = " : ".join(by_group[group] for group in components)
    return Layout(
        names,
        node_of,
        local_ranks(node_of, len(names)),
        distribution or step.distribution or "block",
        "rendezvous",
        components,
    )


def _leave_for_children(step: SlurmStep, known: Known) -> None:
    packed = b64encode(zlib.compress(json.dumps(known).encode())).decode()
    text = f"{_name(step)} {packed}"
    if len(text) <= _LONGEST_VALUE:
        os.environ[SlurmStep.exchanged_layout.name] = text


def _left_by_earlier_call(step: SlurmStep) -> Optional[Known]:
    """Returns the answer of an earlier call in this task; None where there is none."""
    name, _, packed = (step.exchanged_layout or "").partition(" ")
    if name != _name(step):
        return None
    try:
        order, node_of = json.loads(zlib.decompress(b64decode(packed)))
    except (ValueError, TypeError, zlib.error) as error:
        raise LayoutError(
            f"{SlurmStep.exchanged_layout.name}={step.exchanged_layout!r:.80}: expected what an "
            f"earlier call in this task has left there ({error}). Unset it, or start again."
        ) from error
    return order, node_of


def _name(step: SlurmStep) -> str:
    return identity_of(step).replace(" ", "-")


def _layout_from_places(
    places: Sequence[Place], nodes: Sequence[str], counts: Sequence[int]
) -> Known:
    """Returns the order of `nodes` by SLURM_NODEID, and by rank the node id.

    Raises:
        LayoutError: where the places contradict each other or the step's variables.
    """
    index = {name: i for i, name in enumerate(nodes)}
    ranks_on: Dict[int, List[int]] = {node: [] for node in range(len(nodes))}
    node_id_of: Dict[int, Any] = {}
    for rank, (name, local_rank, node_id) in enumerate(places):
        if name not in index:
            raise LayoutError(
                f"rank {rank} runs on {name!r}, which SLURM_STEP_NODELIST does not name"
            )
        ranks = ranks_on[index[name]]
        if local_rank != len(ranks):
            raise LayoutError(
                f"rank {rank} has local rank {local_rank} on node {name}, but {len(ranks)} lower "
                "ranks are there"
            )
        ranks.append(rank)
        if node_id_of.setdefault(index[name], node_id) != node_id:
            raise LayoutError(
                f"rank {rank} has SLURM_NODEID={node_id}, but rank {ranks[0]} on the same node "
                f"{name} has {node_id_of[index[name]]}"
            )
    for node, count in enumerate(counts):
        if len(ranks_on[node]) != count:
            raise LayoutError(
                f"{len(ranks_on[node])} tasks run on node {nodes[node]}, but "
                f"SLURM_STEP_TASKS_PER_NODE gives it {count}"
            )
    order = list(range(len(nodes)))
    if sorted(node_id_of.values(), key=str) == sorted(order, key=str):
        order.sort(key=lambda node: node_id_of[node])
    position = {node: i for i, node in enumerate(order)}
    return order, [position[index[name]] for name, _, _ in places]
