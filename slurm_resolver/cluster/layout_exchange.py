"""The layout of a step whose variables do not describe it: each task reports its place."""

from __future__ import annotations

import json
import os
import time
from collections import Counter

from slurm_resolver.cluster.layout import Layout, make_layout, nodes_and_counts
from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.coordination.client import connect
from slurm_resolver.coordination.secret import RefusedError
from slurm_resolver.errors import LayoutError, RendezvousError
from slurm_resolver.slurm.step_variables import SlurmStep


def exchange_layout(
    step: SlurmStep, service: ServiceAddress, until: float | None, reason: str
) -> Layout:
    """Returns the layout that the tasks report to each other. All tasks must call it.

    They wait for each other until the time `until` of `time.monotonic`; with None, as at any start.
    The answer stays in SLURM_RESOLVER_LAYOUT, where later calls and child processes find it.
    `reason` is why they have to, for messages.

    Raises:
        LayoutError: if not all tasks call it in time, or their reports do not fit
            SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE.
        RendezvousError: if the coordination service refuses this task.
    """
    name = service.identity.replace(" ", "-")
    left_by, _, text = (step.exchanged_layout or "").partition(" ")
    if left_by != name:  # no earlier call in this start of the step has left an answer
        step.require(SlurmStep.local_rank)  # by which a task knows that the service is its own
        try:
            places = connect(service).gather(
                "the exchange of the layout",
                (step.require(SlurmStep.node_name), step.node_id),
                step.start_seconds if until is None else until - time.monotonic(),
            )
        except RefusedError:  # another layout would not help
            raise
        except RendezvousError as error:
            raise LayoutError(
                f"{reason}The variables do not say where the ranks of this step run, and the tasks "
                f"could not tell each other: {error}"
            ) from error
        nodes, counts = nodes_and_counts(step)
        expected = dict(zip(nodes, counts))
        reported = Counter(node for node, _ in places.values())
        if reported != expected:
            raise LayoutError(
                f"{reason}The numbers of tasks on the nodes are {dict(reported)!s:.200}, but "
                f"SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE say {expected!s:.200}"
            )
        node_ids = dict(places.values())
        if None not in node_ids.values():
            nodes = sorted(node_ids, key=node_ids.__getitem__)
        position_of = {node: position for position, node in enumerate(nodes)}
        text = json.dumps([nodes, [position_of[node] for node, _ in places.values()]])
        if len(text) <= 100_000:  # Linux takes 131,072 bytes for a variable
            os.environ[SlurmStep.exchanged_layout.name] = f"{name} {text}"
    # The nodes in the order of SLURM_NODEID (of SLURM_STEP_NODELIST where it is not set), and by
    # rank the index of its node.
    nodes, node_of = json.loads(text)
    components = step.components_in_step
    if sum(len(component.nodes) for component in components) != len(nodes):
        components = []  # two components share a node
    return make_layout(step, nodes, node_of, components)._replace(source="rendezvous")
