"""The layout of a step whose variables do not describe it: each task reports its place."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import Optional

from slurm_resolver.cluster.layout import (
    Counts,
    Layout,
    disjoint_components,
    make_layout,
    nodes_and_counts,
)
from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.coordination.client import connect
from slurm_resolver.coordination.secret import RefusedError
from slurm_resolver.errors import LayoutError, RendezvousError
from slurm_resolver.slurm.step_variables import Component, SlurmStep
from slurm_resolver.slurm.variable_types import Nodes

Place = tuple[str, Optional[int]]  # a task's node and its node id


def exchange_layout(step: SlurmStep, service: ServiceAddress, until: float | None) -> Layout:
    """Returns the layout that the tasks report to each other. All tasks must call it.

    They wait for each other until the time `until` of `time.monotonic`; with None, as at any start.
    The answer stays in SLURM_RESOLVER_LAYOUT, where later calls and child processes find it.

    Raises:
        LayoutError: if not all tasks call it in time, or their reports do not fit
            SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE.
        RendezvousError: if the coordination service cannot start, or refuses this task.
    """
    nodes, counts = nodes_and_counts(step)
    name = service.identity.replace(" ", "-")
    left_by, _, text = (step.exchanged_layout or "").partition(" ")
    if left_by != name:  # no earlier call in this start of the step has left an answer
        text = json.dumps(_nodes_of_ranks(_gather_places(step, service, until), nodes, counts))
        if len(text) <= 100_000:  # Linux takes 131,072 bytes for a variable
            os.environ[SlurmStep.exchanged_layout.name] = f"{name} {text}"
    names, node_of = json.loads(text)
    components: Sequence[Component] = ()
    with contextlib.suppress(LayoutError):  # if two components share a node
        components = disjoint_components(step)
    return make_layout(step, names, node_of, components)._replace(source="rendezvous")


def _gather_places(step: SlurmStep, service: ServiceAddress, until: float | None) -> list[Place]:
    """Returns by rank where each task is, as it says."""
    node = step.require(SlurmStep.node_name)
    hosts_service = (node, step.require(SlurmStep.local_rank)) == (service.node, 0)
    seconds = step.start_seconds if until is None else until - time.monotonic()
    try:
        places = connect(service._replace(hosts_service=hosts_service)).gather(
            "the exchange of the layout",
            (node, step.node_id),
            seconds,
        )
    except RefusedError:  # another layout would not help
        raise
    except RendezvousError as error:
        raise LayoutError(
            "the variables do not say where the ranks of this step run, and the tasks could "
            f"not tell each other: {error}"
        ) from error
    return [*places.values()]


def _nodes_of_ranks(
    places: Sequence[Place], nodes: Nodes, counts: Counts
) -> tuple[list[str], list[int]]:
    """Returns the nodes in the order of SLURM_NODEID, and by rank the node id.

    Raises:
        LayoutError: if the places contradict the step's variables. Each task then compares the
            layout with its own place.
    """
    count_of = Counter(name for name, _ in places)
    for name, count in zip(nodes, counts):  # there are as many places as the counts sum to
        if count_of[name] != count:
            raise LayoutError(
                f"the number of tasks on node {name} is {count_of[name]}, but SLURM_STEP_NODELIST "
                f"and SLURM_STEP_TASKS_PER_NODE give it {count}"
            )
    node_id_of = {name: node_id for name, node_id in places if node_id is not None}
    position_of = {name: position for position, name in enumerate(nodes)}
    if set(node_id_of.values()) == set(range(len(nodes))):
        position_of = node_id_of
    return sorted(nodes, key=position_of.__getitem__), [position_of[name] for name, _ in places]
