"""Where every rank of the step runs: its node, and its local rank there.

Everything here is computed from variables that all tasks see alike; only `verify_layout` looks at
what one task knows of itself, and refuses a layout that contradicts it. Rules: srun(1), option
``--distribution``, and the layout functions of Slurm's own source (step_layout.c, dist_tasks.c),
measured on live clusters.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.cluster.arbitrary import arbitrary_hosts
from slurm_resolver.cluster.distribution import (
    RankPlaces,
    distribute_block,
    distribute_plane,
    local_ranks,
)
from slurm_resolver.cluster.het_groups import ComponentRanks, het_groups_of_step
from slurm_resolver.errors import LayoutError, UnknownLayoutError
from slurm_resolver.slurm.hostlist import MAX_HOSTS
from slurm_resolver.slurm.hostlist_compress import short_hostlist
from slurm_resolver.slurm.step import RESTART_HINT, Component, SlurmStep

MAX_TASKS = MAX_HOSTS


class Layout(NamedTuple):
    """Node and local rank of every rank.

    Attributes:
        nodes: the node names, in the order of SLURM_NODEID.
        node_of: by rank, the index into `nodes`.
        local_rank_of: by rank, its SLURM_LOCALID: 0 for the lowest rank on a node, then 1, ….
        distribution: the one that placed the tasks; of a heterogeneous step each component's,
            separated by " : " as srun separates the components.
        source: what the layout was worked out from; "environment" unless a caller gave it.
        components: the ranks of each component; empty unless the step is heterogeneous.
        unambiguous: False where the variables allow another layout as well, which only some of the
            tasks would notice: a component whose distribution was told to srun alone.
    """

    nodes: Tuple[str, ...]
    node_of: Sequence[int]
    local_rank_of: Sequence[int]
    distribution: str
    source: str = "environment"
    components: Tuple[ComponentRanks, ...] = ()
    unambiguous: bool = True

    @property
    def num_tasks(self) -> int:
        """The number of tasks in the step."""
        return len(self.node_of)

    def counts(self) -> List[int]:
        """The number of tasks on each of `nodes`."""
        counts = Counter(self.node_of)
        return [counts[node] for node in range(len(self.nodes))]

    def ranks_on(self, node: int) -> Tuple[int, ...]:
        """The ranks on the node with this SLURM_NODEID, ascending: its tasks' SLURM_GTIDS."""
        ranks: List[int] = []
        with contextlib.suppress(ValueError):  # index() looks much faster than a loop would
            while True:
                ranks.append(self.node_of.index(node, ranks[-1] + 1 if ranks else 0))
        return tuple(ranks)


def layout_from_environment(step: SlurmStep, source: str = "environment") -> Layout:
    """Returns the layout of the step, from its variables alone.

    Raises:
        LayoutError: where the variables cannot tell, or contradict each other.
        EnvironmentValueError: where one that is needed is missing.
    """
    nodes, counts = nodes_and_counts(step, source)
    components = het_groups_of_step(step, nodes)
    if components:
        return _heterogeneous(step, dict(zip(nodes, counts)), components, source)
    distribution = step.distribution or "block"
    placed = _place(step, nodes, counts, distribution, step.plane_size, f"job step {step.name}")
    return Layout(nodes, *placed, distribution, source)


def verify_layout(layout: Layout, step: SlurmStep) -> None:
    """Compares the layout with what this one task knows of its own place.

    Raises:
        LayoutError: naming the variable that contradicts the layout.
    """
    rank = step.require(SlurmStep.rank)
    if not 0 <= rank < layout.num_tasks:
        raise LayoutError(
            f"SLURM_PROCID={rank}, but job step {step.name} has {layout.num_tasks} tasks; "
            f"expected a rank from 0 to {layout.num_tasks - 1}. {RESTART_HINT}"
        )
    node = layout.node_of[rank]
    facts: List[Tuple[str, object, object]] = [
        ("SLURMD_NODENAME", step.node_name, layout.nodes[node]),
        ("SLURM_NODEID", step.node_id, node),
        ("SLURM_LOCALID", step.local_rank, layout.local_rank_of[rank]),
    ]
    for name, seen, computed in facts:
        if seen is not None and seen != computed:
            raise _contradiction(layout, step, name, seen, computed)
    if step.node_ranks is not None:
        ranks = layout.ranks_on(node)
        if tuple(sorted(step.node_ranks)) != ranks:
            seen_text, computed_text = _some_ranks(step.node_ranks), _some_ranks(ranks)
            raise _contradiction(layout, step, "SLURM_GTIDS", seen_text, computed_text)


def nodes_and_counts(
    step: SlurmStep, source: str = "environment"
) -> Tuple[Tuple[str, ...], Tuple[int, ...]]:
    """Returns the step's nodes and their numbers of tasks, once they fit together.

    Raises:
        LayoutError: where they contradict each other. EnvironmentValueError: where one is missing.
    """
    nodes: Tuple[str, ...] = step.require(SlurmStep.nodes)
    counts: Tuple[int, ...] = step.require(SlurmStep.tasks_per_node)
    # who is to blame: Slurm's variables, or what the caller gave in their place
    node_list, count_list, remedy = (
        ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", RESTART_HINT)
        if source == "environment"
        else (source, source, f"Correct {source}, or leave it to Slurm.")
    )
    if len(nodes) != len(counts):
        raise LayoutError(
            f"{node_list} names {len(nodes)} nodes ({short_hostlist(nodes)}), but {count_list} has "
            f"{len(counts)} counts; expected one a node. {remedy}"
        )
    if len(set(nodes)) != len(nodes):
        twice = next(name for name, times in Counter(nodes).items() if times > 1)
        raise LayoutError(
            f"{node_list}={short_hostlist(nodes)} names {twice!r} more than once; expected each "
            f"node once. {remedy}"
        )
    if min(counts, default=0) < 1:
        idle = nodes[counts.index(min(counts))] if counts else "(none)"
        raise LayoutError(
            f"{count_list} gives node {idle} no task; expected at least one on every node. {remedy}"
        )
    total = sum(counts)
    if total > MAX_TASKS:
        raise LayoutError(
            f"{count_list} sums to {total:,} tasks; expected at most {MAX_TASKS:,}. {remedy}"
        )
    for name, said, counted in (
        ("SLURM_STEP_NUM_TASKS", step.num_tasks, total),
        ("SLURM_STEP_NUM_NODES", step.num_nodes, len(nodes)),
    ):
        if said is not None and said != counted:
            made = node_list if node_list == count_list else f"{node_list} and {count_list}"
            raise LayoutError(
                f"{name}={said}, but {made} make {counted}; expected the same number. {remedy}"
            )
    return nodes, counts


def _place(
    step: SlurmStep,
    nodes: Sequence[str],
    counts: Sequence[int],
    distribution: str,
    plane_size: Optional[int],
    what: str,
) -> RankPlaces:
    """Returns by rank the index into `nodes` and the local rank, for a component or a step."""
    if len(nodes) == 1:
        return [0] * counts[0], list(range(counts[0]))
    if distribution == "arbitrary":
        index = {name: i for i, name in enumerate(nodes)}
        node_of = [index[host] for host in arbitrary_hosts(step, nodes, counts)]
        return node_of, local_ranks(node_of, len(nodes))
    if distribution == "block":
        if step.sluid is not None and step.topology_pattern not in (None, "node"):
            raise UnknownLayoutError(
                f"the layout of {what} cannot be known: this is Slurm 26.05 or later (SLURM_JOB_"
                f"SLUID is set) with a topology plugin (SLURM_TOPOLOGY_ADDR_PATTERN="
                f"{step.topology_pattern}), which places tasks in block distribution in an order "
                "that no variable tells. Start with `srun --distribution=cyclic` or "
                "`srun --distribution=plane=N`, whose order is known."
            )
        return distribute_block(counts)
    if distribution == "cyclic":
        plane_size = 1
    elif plane_size is None:
        raise LayoutError(
            f"SLURM_DISTRIBUTION=plane, but SLURM_DIST_PLANESIZE is not set; expected the size of "
            f"the planes of {what}. Start with `srun --distribution=plane=N`."
        )
    return distribute_plane(counts, plane_size)


def _heterogeneous(
    step: SlurmStep, counts: Dict[str, int], components: Sequence[Component], source: str
) -> Layout:
    """The components one after the other: ranks and node ids count on from each to the next.

    The step's own SLURM_DISTRIBUTION is not looked at: tasks of one heterogeneous step see
    different values of it.
    """
    nodes: List[str] = []
    node_of: List[int] = []
    local_rank_of: List[int] = []  # components have nodes of their own
    spans = []
    distributions = []
    unambiguous = True
    for component in components:
        distribution = component.distribution or "block"
        node_indices, local = _place(
            step,
            component.nodes,
            [counts[host] for host in component.nodes],
            distribution,
            component.plane_size,
            f"component {component.group} of job step {step.name}",
        )
        if component.distribution is None:
            cyclic = distribute_plane([counts[host] for host in component.nodes], 1)
            unambiguous = unambiguous and (node_indices, local) == cyclic
        spans.append(
            ComponentRanks(component.group, len(node_of), len(node_of) + len(node_indices))
        )
        node_of += [len(nodes) + node for node in node_indices]
        local_rank_of += local
        nodes += component.nodes
        distributions.append(distribution)
    together = " : ".join(distributions)
    return Layout(tuple(nodes), node_of, local_rank_of, together, source, tuple(spans), unambiguous)


def _some_ranks(ranks: Sequence[int]) -> str:
    """Returns the ranks as text: of many the first, and how many they are."""
    shown = ",".join(map(str, ranks[:32]))
    return shown if len(ranks) <= 32 else f"{shown},… ({len(ranks)} ranks)"


def _contradiction(
    layout: Layout, step: SlurmStep, name: str, seen: object, computed: object
) -> UnknownLayoutError:
    what = f"{layout.distribution} distribution over {short_hostlist(layout.nodes)}"
    if layout.components:
        hint = (
            "A component was started with a distribution of its own, which no variable tells: give "
            "it to salloc or sbatch as well (salloc -N2 -m cyclic : …), or leave it out."
        )
    elif layout.source != "environment":
        hint = f"The layout was given ({layout.source}): correct it, or leave it to Slurm."
    else:
        hint = (
            "Either the step is heterogeneous (srun … : …) inside a plain allocation, which no "
            "variable tells: allocate the components with `salloc … : …` or `sbatch` instead. Or "
            "variables of another step are exported: start from a clean shell."
        )
    return UnknownLayoutError(
        f"rank {step.rank} of job step {step.name} has {name}={seen}, but {what} expects "
        f"{computed}: where the ranks run cannot be known. {hint}"
    )
