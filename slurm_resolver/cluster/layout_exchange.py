"""What only the tasks together know: the layout of a step whose variables do not tell it.

Every task knows its own rank, node and local id for sure; all of them together are the layout. They
meet at the task with local id 0 on the first node of SLURM_STEP_NODELIST, which each can name
without knowing more.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from base64 import b64decode, b64encode
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

from slurm_resolver.cluster.distribution import local_ids
from slurm_resolver.cluster.het_groups import ranks_of_components
from slurm_resolver.cluster.layout import Layout, check_counts
from slurm_resolver.cluster.ports import choose_ports
from slurm_resolver.errors import LayoutError, RendezvousError
from slurm_resolver.rendezvous.barrier import MeetingPoint, Note, meet
from slurm_resolver.slurm.step import SlurmStep

LAYOUT_SECONDS = 60.0

HostOf = Callable[[str], str]


def meeting_point(
    step: SlurmStep,
    purpose: str,
    expected: Optional[List[str]] = None,
    port_base: Optional[int] = None,
    host_of: HostOf = str,
) -> MeetingPoint:
    """Returns where the tasks of this step meet; the same in every task, but for `is_host`.

    Args:
        step: the task's variables.
        purpose: what they meet for: who comes for something else waits for its own meeting.
        expected: by rank, how to name each task; by default by its rank alone.
        port_base: as in `slurm_resolver.resolve`.
        host_of: from a node's name to the host to connect to.
    """
    nodes, counts = check_counts(step)
    ports = choose_ports(step, max(counts), port_base)
    host = host_of(nodes[0])
    return MeetingPoint(
        host=host,
        port=ports.meeting,
        name=f"the meeting point {host}:{ports.meeting} (local id 0 on node {nodes[0]})",
        identity=f"{step.job_id}.{step.step_id}.{step.sluid}:{purpose}",
        rank=step.require("procid"),
        expected=expected or [f"rank {rank}" for rank in range(sum(counts))],
        is_host=step.require("nodename") == nodes[0] and step.require("localid") == 0,
    )


def layout_by_meeting(
    step: SlurmStep,
    port_base: Optional[int] = None,
    host_of: HostOf = str,
    timeout: float = LAYOUT_SECONDS,
) -> Layout:
    """Returns the layout as the tasks report it to each other. All tasks must call it.

    Raises:
        LayoutError: where not all tasks come within `timeout` seconds, or their reports do not fit
            SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE.
    """
    point = meeting_point(step, "layout", port_base=port_base, host_of=host_of)
    nodes, counts = step.require("nodes"), step.require("tasks_per_node")
    note = {"node": step.nodename, "local": step.localid, "id": step.nodeid}
    try:
        answer = meet(point, note, lambda notes: _combine(notes, nodes, counts), timeout)
    except RendezvousError as error:
        raise LayoutError(
            f"the environment does not tell where the ranks of this step run, and the tasks could "
            f"not tell each other: {error}"
        ) from error
    order = _unpack(answer["order"])
    node_of = _unpack(answer["node_of"])
    names = tuple(nodes[index] for index in order)
    components = ranks_of_components(step, names, node_of)
    # Of a heterogeneous step the tasks see different values of SLURM_DISTRIBUTION.
    told = {c.group: c.distribution for c in step.components} if components else {}
    distribution = " : ".join(told[c.group] or "block" for c in components)
    return Layout(
        names,
        node_of,
        local_ids(node_of, len(names)),
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
        if note["local"] != len(ranks):
            raise RendezvousError(
                f"rank {rank} has SLURM_LOCALID={note['local']} on node {note['node']}, but "
                f"{len(ranks)} lower ranks are there"
            )
        ranks.append(rank)
        if number.setdefault(node, note["id"]) != note["id"]:
            raise RendezvousError(
                f"rank {rank} has SLURM_NODEID={note['id']}, but rank {ranks[0]} on the same node "
                f"{note['node']} has {number[node]}"
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
