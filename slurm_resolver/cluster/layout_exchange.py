"""The layout of a step whose variables do not describe it: the tasks tell each other.

Every task knows its own rank, node and local rank for sure. Together these are the layout.
"""

from __future__ import annotations

import os
import sys
import zlib
from array import array
from base64 import b64decode, b64encode
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from slurm_resolver.cluster.distribution import local_ranks
from slurm_resolver.cluster.het_groups import ranks_of_components
from slurm_resolver.cluster.layout import Layout, nodes_and_counts
from slurm_resolver.cluster.options import MEETING_SECONDS
from slurm_resolver.cluster.ports import choose_ports
from slurm_resolver.cluster.service_address import HostOf, identity_of, service_before_layout
from slurm_resolver.errors import LayoutError, RendezvousError
from slurm_resolver.slurm.step import SlurmStep

_LONGEST_VALUE = 100_000  # characters; Linux takes 131,072 bytes for a variable

# What a task says of itself: its node's name, local rank and node id.
Place = Tuple[str, int, Optional[int]]


def exchange_layout(
    step: SlurmStep,
    port_base: Optional[int] = None,
    host_of: HostOf = str,
    timeout: float = MEETING_SECONDS,
) -> Layout:
    """Returns the layout that the tasks report to each other. All tasks must call it.

    The answer stays in SLURM_RESOLVER_LAYOUT, where later calls and child processes find it.

    Args:
        step: the task's variables.
        port_base: as in `slurm_resolver.resolve`.
        host_of: from a node's name to the host to connect to.
        timeout: seconds in which all tasks have to call it.

    Raises:
        LayoutError: where not all tasks call it in time, or their reports do not fit
            SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE.
    """
    nodes, counts = nodes_and_counts(step)
    known = _left_by_earlier_call(step)
    if known is None:
        port = choose_ports(step, max(counts), port_base).meeting_port
        service = service_before_layout(step, sum(counts), port, host_of)
        # few steps need it
        from slurm_resolver.coordination.client import connect

        place = (step.node_name, step.local_rank, step.node_id)
        try:
            places = connect(service).gather("the exchange of the layout", place, timeout)
            known = _layout_from_places(places, nodes, counts)
        except RendezvousError as error:
            raise LayoutError(
                "the variables do not say where the ranks of this step run, and the tasks could "
                f"not tell each other: {error}"
            ) from error
        _leave_for_children(step, known)
    order, node_of = known
    names_by_id = tuple(nodes[index] for index in order)
    components = ranks_of_components(step, names_by_id, node_of)
    # The tasks of a heterogeneous step have different values of SLURM_DISTRIBUTION.
    by_group = {c.group: c.distribution for c in step.components} if components else {}
    distribution = " : ".join(by_group[c.group] or "block" for c in components)
    return Layout(
        names_by_id,
        node_of,
        local_ranks(node_of, len(names_by_id)),
        distribution or step.distribution or "block",
        "rendezvous",
        components,
    )


def _leave_for_children(step: SlurmStep, known: Tuple[List[int], List[int]]) -> None:
    text = " ".join((identity_of(step).replace(" ", "-"), *map(_encode_numbers, known)))
    if len(text) <= _LONGEST_VALUE:
        os.environ[SlurmStep.exchanged_layout.name] = text


def _left_by_earlier_call(step: SlurmStep) -> Optional[Tuple[List[int], List[int]]]:
    """Returns the answer of an earlier call in this task; None where there is none."""
    identity, _, answer = (step.exchanged_layout or "").partition(" ")
    if identity != identity_of(step).replace(" ", "-"):
        return None
    try:
        order, node_of = map(_decode_numbers, answer.split(" "))
    except (ValueError, TypeError, zlib.error) as error:
        raise LayoutError(
            f"{SlurmStep.exchanged_layout.name}={step.exchanged_layout!r:.80}: expected what an "
            f"earlier call in this task has left there ({error}). Unset it, or start again."
        ) from error
    return order, node_of


def _encode_numbers(numbers: Iterable[int]) -> str:
    packed = array("I", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return b64encode(zlib.compress(packed.tobytes(), 1)).decode()


def _decode_numbers(text: str) -> List[int]:
    packed = array("I")
    packed.frombytes(zlib.decompress(b64decode(text)))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


def _layout_from_places(
    places: Sequence[Place], nodes: Sequence[str], counts: Sequence[int]
) -> Tuple[List[int], List[int]]:
    """Returns the order of `nodes` by SLURM_NODEID, and by rank the node id.

    Raises:
        LayoutError: where the places contradict each other or the step's variables.
    """
    index = {name: i for i, name in enumerate(nodes)}
    ranks_on: Dict[int, List[int]] = {}
    node_id_of: Dict[int, Any] = {}
    for rank, (name, local_rank, node_id) in enumerate(places):
        node = index.get(name)
        if node is None:
            raise LayoutError(
                f"rank {rank} runs on {name!r}, which SLURM_STEP_NODELIST does not name"
            )
        ranks = ranks_on.setdefault(node, [])
        if local_rank != len(ranks):
            raise LayoutError(
                f"rank {rank} has local rank {local_rank} on node {name}, but {len(ranks)} lower "
                "ranks are there"
            )
        ranks.append(rank)
        if node_id_of.setdefault(node, node_id) != node_id:
            raise LayoutError(
                f"rank {rank} has SLURM_NODEID={node_id}, but rank {ranks[0]} on the same node "
                f"{name} has {node_id_of[node]}"
            )
    for node, count in enumerate(counts):
        if len(ranks_on.get(node, ())) != count:
            raise LayoutError(
                f"{len(ranks_on.get(node, ()))} tasks run on node {nodes[node]}, but "
                f"SLURM_STEP_TASKS_PER_NODE gives it {count}"
            )
    order = list(range(len(nodes)))
    if sorted(node_id_of.values(), key=str) == sorted(order, key=str):
        order.sort(key=lambda node: node_id_of[node])
    position = {node: i for i, node in enumerate(order)}
    return order, [position[index[name]] for name, _, _ in places]
