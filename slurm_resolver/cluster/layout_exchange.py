"""The layout of a step whose variables do not describe it: each task reports its place."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import Optional

from slurm_resolver.cluster.addresses import find_hosts, find_service, identity_of
from slurm_resolver.cluster.layout import (
    Counts,
    Layout,
    disjoint_components,
    make_layout,
    nodes_and_counts,
)
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.ports import choose_ports
from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.coordination.client import connect
from slurm_resolver.coordination.secret import RefusedError
from slurm_resolver.errors import LayoutError, RendezvousError
from slurm_resolver.slurm.settings import Settings
from slurm_resolver.slurm.step_variables import Component, SlurmStep
from slurm_resolver.slurm.variable_types import Nodes

Place = tuple[str, Optional[int]]  # a task's node and its node id


def exchange_layout(step: SlurmStep, options: ClusterOptions) -> Layout:
    """Returns the layout that the tasks report to each other. All tasks must call it.

    The answer stays in SLURM_RESOLVER_LAYOUT, where later calls and child processes find it.

    Raises:
        LayoutError: if not all tasks call it in time, or their reports do not fit
            SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE.
        RendezvousError: if the coordination service cannot start, or refuses this task.
    """
    nodes, counts = nodes_and_counts(step)
    name = identity_of(step).replace(" ", "-")
    left_by, _, text = (step.exchanged_layout or "").partition(" ")
    if left_by != name:  # no earlier call in this start of the step has left an answer
        text = json.dumps(_nodes_of_ranks(_gather_places(step, options), nodes, counts))
        if len(text) <= 100_000:  # Linux takes 131,072 bytes for a variable
            os.environ[Settings.exchanged_layout.name] = f"{name} {text}"
    names, node_of = json.loads(text)
    components: Sequence[Component] = ()
    with contextlib.suppress(LayoutError):  # if two components share a node
        components = disjoint_components(step)
    return make_layout(step, names, node_of, components)._replace(source="rendezvous")


def _gather_places(step: SlurmStep, options: ClusterOptions) -> list[Place]:
    """Returns by rank where each task is, as it says."""
    seconds = step.start_seconds
    if options.until is not None:
        seconds = options.until - time.monotonic()
    try:
        places = connect(_find_service(step, options)).gather(
            "the exchange of the layout",
            (step.node_name, step.node_id),
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


def _find_service(step: SlurmStep, options: ClusterOptions) -> ServiceAddress:
    nodes, counts = nodes_and_counts(step)
    return find_service(
        step,
        options,
        hosts=find_hosts(step, nodes, sum(counts), options),
        port=choose_ports(step, max(counts), options.port_base).service_port,
        place=(step.require(SlurmStep.node_name), step.require(SlurmStep.local_rank)),
    )


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
