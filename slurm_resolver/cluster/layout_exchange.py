"""The layout of a step whose variables do not tell it: the tasks tell each other where they run.

They do so by the store of PMI-2, where the step has one that they may use, or meet over TCP. The
variables of every task tell its own rank, node and local rank. Together these are the layout.
Of a step of srun the nodes are known, and how many tasks each has; of an mpirun not even these.
"""

from __future__ import annotations

import os
import sys
import zlib
from array import array
from base64 import b64decode, b64encode
from collections import Counter
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Sequence

from slurm_resolver.cluster.distribution import local_ranks
from slurm_resolver.cluster.het_groups import ranks_of_components
from slurm_resolver.cluster.layout import Layout, nodes_and_counts
from slurm_resolver.cluster.meeting import meet
from slurm_resolver.cluster.meeting_point import (
    HostOf,
    rendezvous_of_mpi_run,
    rendezvous_without_layout,
    was_restarted,
)
from slurm_resolver.cluster.options import MEETING_SECONDS
from slurm_resolver.cluster.pmi2_layout import read_places
from slurm_resolver.cluster.ports import choose_ports, derive_meeting_port
from slurm_resolver.errors import LayoutError, RendezvousError
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.rendezvous.task_claim import claim_task, find_claimant
from slurm_resolver.slurm.step import SlurmStep

if TYPE_CHECKING:
    from slurm_resolver.rendezvous.first_half import FirstHalf
    from slurm_resolver.rendezvous.gathering import Note
    from slurm_resolver.rendezvous.pmi2 import Pmi2Task

_FOR_CHILDREN = ("source", "order", "node_of")  # what of the answer child processes are told
_LONGEST_VALUE = 100_000  # characters; Linux takes 131,072 bytes for a variable


def exchange_layout(
    step: SlurmStep,
    port_base: Optional[int] = None,
    host_of: HostOf = str,
    timeout: float = MEETING_SECONDS,
    find_task: Callable[[], Optional[Pmi2Task]] = lambda: None,
) -> Layout:
    """Returns the layout that the tasks report to each other. All tasks must call it.

    A child process of a task gets the layout that the task's own process has been told.

    Args:
        step: the task's variables.
        port_base: as in `slurm_resolver.resolve`.
        host_of: from a node's name to the host to connect to.
        timeout: seconds in which all tasks have to call it.
        find_task: returns what Slurm tells the task of PMI-2, by which they tell each other as soon
            as all have come; or None, in all tasks alike: then they meet over TCP. It is called
            only in the process that stands for its task.

    Raises:
        LayoutError: where not all tasks call it in time, or their reports do not fit
            SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE; in a child process of a task, where
            the task has not called it before.
    """
    note = {"node": step.node_name, "local_rank": step.local_rank, "node_id": step.node_id}
    nodes: Sequence[str] = ()
    if step.mpi_run is not None:
        num_tasks = step.mpi_run.size
        rendezvous = rendezvous_of_mpi_run(step, step.mpi_run, derive_meeting_port(step), host_of)
    else:
        nodes, counts = nodes_and_counts(step)
        num_tasks = sum(counts)
        ports = choose_ports(step, max(counts), port_base)
        rendezvous = rendezvous_without_layout(step, ports.meeting_port, host_of)
    names = [f"rank {rank}" for rank in range(num_tasks)]

    def decide(notes: Dict[int, Note]) -> Dict[str, Any]:
        if step.mpi_run is None:
            return _layout_from_notes(notes, nodes, counts)
        found = Counter(notes[rank]["node"] for rank in range(num_tasks))
        answer = _layout_from_notes(notes, list(found), list(found.values()))
        return {**answer, "nodes": list(found)}

    def by_pmi2(half: FirstHalf) -> Dict[str, Any]:
        return {**decide(read_places(half, step, nodes)), "source": "pmi2"}

    if step.is_live and (was_restarted(step, rendezvous) or not claim_task(rendezvous)):
        answer = _answer_for_children(step, rendezvous)
    else:
        try:
            rendezvous = rendezvous._replace(pmi2=find_task())
            answer = meet(rendezvous, "layout", names, note, decide, timeout, by_pmi2)
            answer.setdefault("source", "rendezvous")
        except RendezvousError as error:
            hint = " Start the program with srun, which tells." if step.mpi_run is not None else ""
            raise LayoutError(
                "the variables do not tell where the ranks of this step run, and the tasks could "
                f"not tell each other: {error}{hint}"
            ) from error
    try:
        nodes = answer.get("nodes", nodes)
        node_of = _decode_numbers(answer["node_of"])
        names_by_id = tuple(nodes[index] for index in _decode_numbers(answer["order"]))
        _leave_for_children(step, rendezvous, answer)
    except (KeyError, IndexError, TypeError, ValueError, zlib.error) as error:
        raise LayoutError(
            f"{rendezvous.name} told where the ranks run in a form that this task cannot read "
            f"({type(error).__name__}: {error}): all tasks need the same version of slurm_resolver."
        ) from error
    components = ranks_of_components(step, names_by_id, node_of)
    # The tasks of a heterogeneous step have different values of SLURM_DISTRIBUTION.
    by_group = {c.group: c.distribution for c in step.components} if components else {}
    distribution = " : ".join(by_group[c.group] or "block" for c in components)
    return Layout(
        names_by_id,
        node_of,
        local_ranks(node_of, len(names_by_id)),
        distribution or step.distribution or ("block" if step.mpi_run is None else "mpirun"),
        answer["source"],
        components,
    )


def _leave_for_children(step: SlurmStep, rendezvous: Rendezvous, answer: Dict[str, Any]) -> None:
    """Leaves the answer in the environment: child processes cannot ask the other tasks."""
    text = " ".join((rendezvous.identity, *(answer[key] for key in _FOR_CHILDREN)))
    if step.is_live and len(text) <= _LONGEST_VALUE:
        os.environ[SlurmStep.exchanged_layout.name] = text


def _answer_for_children(step: SlurmStep, rendezvous: Rendezvous) -> Dict[str, Any]:
    """Returns the answer that this task's own process has left."""
    identity, _, answer = (step.exchanged_layout or "").partition(" ")
    if identity != rendezvous.identity:
        claimant = find_claimant(rendezvous)
        raise LayoutError(
            "the variables do not tell where the ranks of this step run, and the other tasks can "
            f"tell only the process that stands for rank {rendezvous.rank}"
            f"{f', {claimant}' if claimant else ''}: this one is its child, or a second program in "
            "the task. Make the resolver there first, and start this process after it."
        )
    return dict(zip(_FOR_CHILDREN, answer.split(" ")))


def _encode_numbers(numbers: Iterable[int]) -> str:
    """Returns the numbers as a short text, as a large step sends it to each of its tasks."""
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


def _layout_from_notes(
    notes: Dict[int, Note], nodes: Sequence[str], counts: Sequence[int]
) -> Dict[str, Any]:
    """Returns the answer: the nodes in the order of SLURM_NODEID, and by rank the node id.

    Raises:
        RendezvousError: where the notes contradict each other or the step's variables.
    """
    index = {name: i for i, name in enumerate(nodes)}
    ranks_on: Dict[int, List[int]] = {}
    node_id_of: Dict[int, int] = {}
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
                f"rank {rank} has local rank {note['local_rank']} on node {note['node']}, but "
                f"{len(ranks)} lower ranks are there"
            )
        ranks.append(rank)
        if node_id_of.setdefault(node, note["node_id"]) != note["node_id"]:
            raise RendezvousError(
                f"rank {rank} has SLURM_NODEID={note['node_id']}, but rank {ranks[0]} on the same "
                f"node {note['node']} has {node_id_of[node]}"
            )
    for node, count in enumerate(counts):
        if len(ranks_on.get(node, ())) != count:
            raise RendezvousError(
                f"{len(ranks_on.get(node, ()))} tasks run on node {nodes[node]}, but "
                f"SLURM_STEP_TASKS_PER_NODE gives it {count}"
            )
    order = list(range(len(nodes)))
    if sorted(node_id_of.values(), key=str) == sorted(order, key=str):
        order.sort(key=lambda node: node_id_of[node])
    position = {node: i for i, node in enumerate(order)}
    by_rank = (position[index[notes[rank]["node"]]] for rank in range(len(notes)))
    return {"order": _encode_numbers(order), "node_of": _encode_numbers(by_rank)}
