"""What only the tasks together know: the layout of a step whose variables do not tell it.

Every task knows its own rank, node and local rank for sure; all of them together are the layout.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from base64 import b64decode, b64encode
from typing import Any, Dict, Iterable, List, Optional, Sequence

from slurm_resolver.cluster.distribution import local_ranks
from slurm_resolver.cluster.het_groups import ranks_of_het_groups
from slurm_resolver.cluster.layout import Layout, nodes_and_counts
from slurm_resolver.cluster.meeting_point import HostOf, rendezvous_without_layout
from slurm_resolver.cluster.ports import choose_ports
from slurm_resolver.errors import LayoutError, RendezvousError
from slurm_resolver.rendezvous.barrier import Note, meet
from slurm_resolver.slurm.step import SlurmStep

LAYOUT_SECONDS = 60.0


def exchange_layout(
    step: SlurmStep,
    port_base: Optional[int] = None,
    host_of: HostOf = str,
    timeout: float = LAYOUT_SECONDS,
) -> Layout:
    """Returns the layout as the tasks report it to each other. All tasks must call it.

    Args:
        step: the task's variables.
        port_base: as in `slurm_resolver.resolve`.
        host_of: from a node's name to the host to connect to.
        timeout: seconds that all tasks have to come.

    Raises:
        LayoutError: where not all tasks come in time, or their reports do not fit
            SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE.
    """
    nodes, counts = nodes_and_counts(step)
    ports = choose_ports(step, max(counts), port_base)
    rendezvous = rendezvous_without_layout(step, ports.meeting, host_of)
    names = [f"rank {rank}" for rank in range(sum(counts))]
    note = {"node": step.node_name, "local_rank": step.local_rank, "node_id": step.node_id}
    try:
        answer = meet(
            rendezvous, "layout", names, note, lambda notes: _combine(notes, nodes, counts), timeout
        )
    except RendezvousError as error:
        raise LayoutError(
            "the environment does not tell where the ranks of this step run, and the tasks could "
            f"not tell each other: {error}"
        ) from error
    order = _unpack(answer["order"])
    node_of = _unpack(answer["node_of"])
    names_by_id = tuple(nodes[index] for index in order)
    components = ranks_of_het_groups(step, names_by_id, node_of)
    # Of a heterogeneous step the tasks see different values of SLURM_DISTRIBUTION.
    told = {c.group: c.distribution for c in step.components} if components else {}
    distribution = " : ".join(told[c.group] or "block" for c in components)
    return Layout(
        names_by_id,
        node_of,
        local_ranks(node_of, len(names_by_id)),
        distribution or step.distribution or "block",
        "rendezvous",
        components,
    )


def _pack(numbers: Iterable[int]) -> str:
    """As text that a large step can afford to send to each of its tasks."""
    packed = array("I", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return b64encode(zlib.compress(packed.tobytes(), 1)).decode()


def _unpack(text: str) -> List[int]:
    packed = array("I")
    packed.frombytes(zlib.decompress(b64decode(text)))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


def _combine(notes: Dict[int, Note], nodes: Sequence[str], counts: Sequence[int]) -> Dict[str, Any]:
    """Returns the order of the nodes by SLURM_NODEID, and by rank the place in that order."""
    index = {name: i for i, name in enumerate(nodes)}
    ranks_on: Dict[int, List[int]] = {}
    number: Dict[int, int] = {}
    for rank in range(len(notes)):
        note = notes[rank]
        node = index.get(note["node"])
        if node is None:
            raise RendezvousError(
                f"rank {rank} runs on {note['node']!r}, which SLURM_STEP_NODELIST does not name"
            )
        ranks = ranks_on.setdefault(node, [])
        if note["local_rank"] != len(ranks):
            raise RendezvousError(
                f"rank {rank} has SLURM_LOCALID={note['local_rank']} on node {note['node']}, but "
                f"{len(ranks)} lower ranks are there"
            )
        ranks.append(rank)
        if number.setdefault(node, note["node_id"]) != note["node_id"]:
            raise RendezvousError(
                f"rank {rank} has SLURM_NODEID={note['node_id']}, but rank {ranks[0]} on the same "
                f"node {note['node']} has {number[node]}"
            )
    for node, count in enumerate(counts):
        if len(ranks_on.get(node, ())) != count:
            raise RendezvousError(
                f"{len(ranks_on.get(node, ()))} tasks run on node {nodes[node]}, but "
                f"SLURM_STEP_TASKS_PER_NODE gives it {count}"
            )
    order = list(range(len(nodes)))
    if sorted(number.values(), key=str) == sorted(order, key=str):
        order.sort(key=lambda node: number[node])
    place = {node: i for i, node in enumerate(order)}
    by_rank = (place[index[notes[rank]["node"]]] for rank in range(len(notes)))
    return {"order": _pack(order), "node_of": _pack(by_rank)}
