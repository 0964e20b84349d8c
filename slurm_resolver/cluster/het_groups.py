"""The components of a heterogeneous step, and which ranks are theirs."""

from __future__ import annotations

from itertools import groupby
from typing import Dict, List, NamedTuple, Sequence, Tuple

from slurm_resolver.errors import LayoutError
from slurm_resolver.slurm.hostlist_compress import short_hostlist
from slurm_resolver.slurm.step import RESTART_HINT, Component, SlurmStep


class ComponentRanks(NamedTuple):
    """The ranks `first` to `last - 1` are those of component `group`."""

    group: int
    first: int
    last: int


def het_groups_of_step(step: SlurmStep, nodes: Sequence[str]) -> List[Component]:
    """Returns the components with a node in this step, each with those nodes; [] if it is plain.

    A step may take a subset of its job's components (``srun --het-group=0,2``), and one component
    alone is a plain step with lists and distribution of its own.

    Raises:
        LayoutError: for a node of two components, or of none.
    """
    members = set(nodes)
    taken = []
    for component in step.components:
        hosts = tuple(host for host in component.nodes if host in members)
        if hosts:
            taken.append(component._replace(nodes=hosts))
    if len(taken) < 2:
        return []
    owner: Dict[str, int] = {}
    for component in taken:
        for host in component.nodes:
            if host in owner:
                raise LayoutError(
                    f"the layout of job step {step.name} cannot be known: node {host} belongs "
                    f"to the components {owner[host]} and {component.group} of the heterogeneous "
                    "job at once, and no variable tells how many tasks each has there. Give the "
                    "components nodes of their own (for example with --exclusive)."
                )
            owner[host] = component.group
    strangers = [host for host in nodes if host not in owner]
    if strangers:
        raise LayoutError(
            f"SLURM_STEP_NODELIST has {short_hostlist(strangers)}, which no component of the "
            "heterogeneous job (SLURM_JOB_NODELIST_HET_GROUP_…) names; expected each node in one. "
            f"{RESTART_HINT}"
        )
    return taken


def ranks_of_het_groups(
    step: SlurmStep, names: Sequence[str], node_of: Sequence[int]
) -> Tuple[ComponentRanks, ...]:
    """Returns the ranks of each component of a step whose ranks are known to run there.

    () for a plain step, and where a node belongs to two components: then nothing tells.
    """
    try:
        taken = het_groups_of_step(step, names)
    except LayoutError:
        return ()
    group_of = {host: component.group for component in taken for host in component.nodes}
    spans: List[ComponentRanks] = []
    for group, ranks in groupby(group_of[names[node]] for node in node_of) if taken else ():
        first = spans[-1].last if spans else 0
        spans.append(ComponentRanks(group, first, first + sum(1 for _ in ranks)))
    return tuple(spans) if len(spans) == len(taken) else ()
