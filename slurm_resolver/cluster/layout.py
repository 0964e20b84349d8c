"""Where every rank of the step runs: its node, and its local rank there.

The layout is computed from variables that have the same value in every task, so that all tasks get
the same layout. Only `verify_layout` looks at the variables that tell where one task runs, and
refuses a layout that contradicts them.
Rules: srun(1), option ``--distribution``, and the layout functions of Slurm's source
(step_layout.c, dist_tasks.c), compared with live clusters.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.cluster.arbitrary import arbitrary_hosts
from slurm_resolver.cluster.distribution import (
    NodesAndLocalRanks,
    distribute_block,
    distribute_plane,
    local_ranks,
)
from slurm_resolver.cluster.het_groups import ComponentRanks, components_of_step
from slurm_resolver.errors import LayoutError, UnknownLayoutError
from slurm_resolver.slurm.hostlist import MAX_HOSTS
from slurm_resolver.slurm.hostlist_compress import short_hostlist
from slurm_resolver.slurm.step import RESTART_HINT, Component, SlurmStep

MAX_TASKS = MAX_HOSTS

_HET_IN_PLAIN = (
    "this is a heterogeneous step (srun … : …) inside a plain allocation, which no variable tells: "
    "allocate the components with `salloc … : …` or `sbatch`"
)


class Layout(NamedTuple):
    """Node and local rank of every rank.

    Attributes:
        nodes: the node names, in the order of SLURM_NODEID.
        node_of: by rank, the index into `nodes`.
        local_rank_of: by rank, its SLURM_LOCALID: 0 for the lowest rank on a node, then 1, ….
        distribution: Slurm's distribution, which placed the tasks; of a heterogeneous step that of
            each component, separated by " : " as srun separates components.
        source: what the layout was computed from: "environment", "rendezvous" where the tasks told
            each other, or the argument or method of the resolver that gave it.
        components: the ranks of each component; empty unless the step is heterogeneous.
        unambiguous: False where the variables fit another layout as well, and only some tasks can
            notice it: the distribution of a component may have been given to srun alone.
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
        with contextlib.suppress(ValueError):  # index() is much faster than a loop over all ranks
            while True:
                ranks.append(self.node_of.index(node, ranks[-1] + 1 if ranks else 0))
        return tuple(ranks)


def layout_from_environment(step: SlurmStep, source: str = "environment") -> Layout:
    """Returns the layout of the step, computed from its variables alone.

    Raises:
        UnknownLayoutError: where the variables do not tell the layout.
        LayoutError: where they contradict each other.
        EnvironmentValueError: where a variable that is needed is missing.
    """
    if step.is_component:
        # All tasks see this alike, whether or not the layout below would fit their own place.
        raise UnknownLayoutError(
            f"where the ranks of job step {step.name} run cannot be known: {_HET_IN_PLAIN}."
        )
    nodes, counts = nodes_and_counts(step, source)
    components = components_of_step(step, nodes)
    if components:
        return _heterogeneous_layout(step, dict(zip(nodes, counts)), components, source)
    distribution = step.distribution or "block"
    placed = _distribute(
        step, nodes, counts, distribution, step.plane_size, f"job step {step.name}"
    )
    return Layout(nodes, *placed, distribution, source)


def verify_layout(layout: Layout, step: SlurmStep) -> None:
    """Compares the layout with the variables that tell where this task runs.

    Raises:
        LayoutError: where SLURM_PROCID is not a rank of the layout.
        UnknownLayoutError: where another variable of this task contradicts the layout.
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
    for name, value, computed in facts:
        if value is not None and value != computed:
            raise _contradiction(layout, step, name, value, computed)
    if step.node_ranks is not None:
        ranks = layout.ranks_on(node)
        if tuple(sorted(step.node_ranks)) != ranks:
            value_text, computed_text = _ranks_text(step.node_ranks), _ranks_text(ranks)
            raise _contradiction(layout, step, "SLURM_GTIDS", value_text, computed_text)


def nodes_and_counts(
    step: SlurmStep, source: str = "environment"
) -> Tuple[Tuple[str, ...], Tuple[int, ...]]:
    """Returns the names of the step's nodes, and the number of tasks on each.

    Raises:
        LayoutError: where the variables contradict each other.
        EnvironmentValueError: where one of them is missing.
    """
    nodes: Tuple[str, ...] = step.require(SlurmStep.nodes)
    counts: Tuple[int, ...] = step.require(SlurmStep.tasks_per_node)
    # Messages name Slurm's variables, or the argument that was given in their place.
    node_list, count_list, remedy = (
        ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", RESTART_HINT)
        if source == "environment"
        else (source, source, f"Correct {source}, or leave it to Slurm.")
    )
    if len(nodes) != len(counts):
        raise LayoutError(
            f"{node_list} names {len(nodes)} nodes ({short_hostlist(nodes)}), but {count_list} has "
            f"{len(counts)} counts; expected one for each node. {remedy}"
        )
    if len(set(nodes)) != len(nodes):
        repeated = next(name for name, count in Counter(nodes).items() if count > 1)
        raise LayoutError(
            f"{node_list}={short_hostlist(nodes)} names {repeated!r} more than once; expected each "
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
    for name, value, counted in (
        ("SLURM_STEP_NUM_TASKS", step.num_tasks, total),
        ("SLURM_STEP_NUM_NODES", step.num_nodes, len(nodes)),
    ):
        if value is not None and value != counted:
            lists = node_list if node_list == count_list else f"{node_list} and {count_list}"
            raise LayoutError(
                f"{name}={value}, but {lists} make {counted}; expected the same number. {remedy}"
            )
    return nodes, counts


def _distribute(
    step: SlurmStep,
    nodes: Sequence[str],
    counts: Sequence[int],
    distribution: str,
    plane_size: Optional[int],
    subject: str,
) -> NodesAndLocalRanks:
    """Returns by rank the index into `nodes` and the local rank; `subject` is for messages."""
    if len(nodes) == 1:
        return [0] * counts[0], list(range(counts[0]))
    if distribution == "arbitrary":
        index = {name: i for i, name in enumerate(nodes)}
        node_of = [index[host] for host in arbitrary_hosts(step, nodes, counts)]
        return node_of, local_ranks(node_of, len(nodes))
    if distribution == "block":
        if step.sluid is not None:
            # Also where SLURM_TOPOLOGY_ADDR_PATTERN is "node": it is the cluster's default, and a
            # partition may have another topology, or topology/flat the option alpha_step_rank.
            raise UnknownLayoutError(
                f"the layout of {subject} cannot be known: this is Slurm 26.05 or later (SLURM_JOB_"
                "SLUID is set), where topology may order the nodes for block distribution in a way "
                "that no variable tells. Start with `srun --distribution=cyclic` or "
                "`srun --distribution=plane=N`, whose order is known."
            )
        return distribute_block(counts)
    if distribution == "cyclic":
        plane_size = 1
    elif plane_size is None:
        raise LayoutError(
            f"SLURM_DISTRIBUTION=plane, but SLURM_DIST_PLANESIZE is not set; expected the size of "
            f"the planes of {subject}. Start with `srun --distribution=plane=N`."
        )
    return distribute_plane(counts, plane_size)


def _heterogeneous_layout(
    step: SlurmStep, counts: Dict[str, int], components: Sequence[Component], source: str
) -> Layout:
    """Puts the layouts of the components together: ranks and node ids count on through all.

    The step's own SLURM_DISTRIBUTION is not used: the tasks of one heterogeneous step have
    different values of it.
    """
    nodes: List[str] = []
    node_of: List[int] = []
    local_rank_of: List[int] = []  # no two components share a node
    component_ranks = []
    distributions = []
    unambiguous = True
    for component in components:
        distribution = component.distribution or "block"
        component_node_of, component_local_ranks = _distribute(
            step,
            component.nodes,
            [counts[host] for host in component.nodes],
            distribution,
            component.plane_size,
            f"component {component.group} of job step {step.name}",
        )
        if component.distribution is None:
            cyclic = distribute_plane([counts[host] for host in component.nodes], 1)
            computed = (component_node_of, component_local_ranks)
            unambiguous = unambiguous and computed == cyclic
        start = len(node_of)
        node_of += [len(nodes) + node for node in component_node_of]
        local_rank_of += component_local_ranks
        component_ranks.append(ComponentRanks(component.group, start, len(node_of)))
        nodes += component.nodes
        distributions.append(distribution)
    return Layout(
        tuple(nodes),
        node_of,
        local_rank_of,
        " : ".join(distributions),
        source,
        tuple(component_ranks),
        unambiguous,
    )


def _ranks_text(ranks: Sequence[int]) -> str:
    """Returns the ranks as text; of more than 32 the first, and how many there are."""
    shown = ",".join(map(str, ranks[:32]))
    return shown if len(ranks) <= 32 else f"{shown},… ({len(ranks)} ranks)"


def _contradiction(
    layout: Layout, step: SlurmStep, name: str, value: object, computed: object
) -> UnknownLayoutError:
    placement = f"{layout.distribution} distribution over {short_hostlist(layout.nodes)}"
    if layout.components:
        hint = (
            "A component may have got its own --distribution from srun, which no variable tells: "
            "give it to salloc or sbatch as well (salloc -N2 -m cyclic : …), or leave it out."
        )
    elif layout.source != "environment":
        hint = f"The layout was given by {layout.source}: correct that, or leave it to Slurm."
    else:
        hint = (
            f"Either {_HET_IN_PLAIN}. Or variables of another step are exported: start from a "
            "clean shell."
        )
    return UnknownLayoutError(
        f"rank {step.rank} of job step {step.name} has {name}={value}, but {placement} gives it "
        f"{computed}: where the ranks run cannot be known. {hint}"
    )
