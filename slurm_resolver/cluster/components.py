"""The components of a heterogeneous step, and the ranks of each."""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence

from slurm_resolver.errors import LayoutError
from slurm_resolver.slurm.hostlist_compress import short_hostlist
from slurm_resolver.slurm.step import RESTART_HINT, Component, SlurmStep


def components_of_step(step: SlurmStep, nodes: Sequence[str]) -> List[Component]:
    """Returns the components that have nodes in this step, each with these nodes.

    [] if the step is not heterogeneous: ``srun --het-group=0,2`` starts a step on a subset of the
    job's components, and a step on one component has the variables of a plain step.

    Raises:
        LayoutError: for a node that belongs to two components, or to none.
    """
    nodes_of_step = set(nodes)
    components = []
    for component in step.components:
        hosts = tuple(host for host in component.nodes if host in nodes_of_step)
        if hosts:
            components.append(component._replace(nodes=hosts))
    if len(components) < 2:
        return []
    group_of: Dict[str, int] = {}
    for component in components:
        for host in component.nodes:
            if host in group_of:
                raise LayoutError(
                    f"the layout of job step {step.name} cannot be known: node {host} belongs "
                    f"to the components {group_of[host]} and {component.group} of the "
                    "heterogeneous job, and no variable tells how many tasks each has there. Give "
                    "each component its own nodes (for example with --exclusive)."
                )
            group_of[host] = component.group
    unknown = [host for host in nodes if host not in group_of]
    if unknown:
        raise LayoutError(
            f"SLURM_STEP_NODELIST has {short_hostlist(unknown)}, which is in no component of the "
            "heterogeneous job (SLURM_JOB_NODELIST_HET_GROUP_…); expected each node in one. "
            f"{RESTART_HINT}"
        )
    return components


def ranks_of_components(
    components: Sequence[Component], count_of: Mapping[str, int]
) -> Dict[int, range]:
    """Returns by component its ranks: they count on through all, in the order of the components.

    `count_of` is by node the number of its tasks.
    """
    ranks_of: Dict[int, range] = {}
    start = 0
    for component in components:
        stop = start + sum(count_of[host] for host in component.nodes)
        ranks_of[component.group] = range(start, stop)
        start = stop
    return ranks_of
