"""Where every rank of the step runs: its node, and its local rank there.

All tasks compute the same layout, from variables that have the same value in every task. Only
`verify_layout` reads the variables that say where this task runs.

Rules: srun(1), option ``--distribution``, and Slurm's step_layout.c and dist_tasks.c, compared with
live clusters. A step may have 100,000 tasks: the loops over nodes do as little as possible.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_resolver.cluster.options import TasksPerNode
from slurm_resolver.errors import LayoutError, UnknownLayoutError
from slurm_resolver.slurm.hostlist import MAX_HOSTS, short_hostlist
from slurm_resolver.slurm.step_variables import RESTART_HINT, Component, SlurmStep
from slurm_resolver.slurm.variable_types import Nodes
from slurm_resolver.slurm.whole_number import whole_number

_HET_IN_PLAIN = (
    "this is a heterogeneous step (srun … : …) inside a plain allocation, which no variable shows: "
    "allocate the components with `salloc … : …` or `sbatch`"
)

ByRank = Sequence[int]  # a number for each rank
Counts = Sequence[int]  # the number of tasks on each node
Ranks = Sequence[int]


class Layout(NamedTuple):
    """Node and local rank of every rank.

    Attributes:
        nodes: the node names, in the order of SLURM_NODEID.
        node_of: by rank, the index into `nodes`.
        local_rank_of: by rank, its SLURM_LOCALID: 0 for the lowest rank on a node, then 1, ….
        distribution: Slurm's distribution; in a heterogeneous step the components' distributions,
            separated by " : ".
        source: where the layout comes from, as `slurm-resolver show` prints it: the "environment",
            the argument "tasks_per_node", or a "rendezvous" of the tasks.
        components: those of a heterogeneous step, if they have their own nodes.
        unambiguous: False if the variables fit another layout as well, which only some tasks can
            notice: a component's distribution may have been given to srun alone.
    """

    nodes: Nodes = ()
    node_of: ByRank = ()
    local_rank_of: ByRank = ()
    distribution: str = "block"
    source: str = "environment"
    components: Sequence[Component] = ()
    unambiguous: bool = True

    @property
    def num_tasks(self) -> int:
        """The number of tasks in the step."""
        return len(self.node_of)

    def ranks_on(self, node: int) -> Ranks:
        """The ranks on the node with this SLURM_NODEID, ascending: its tasks' SLURM_GTIDS."""
        ranks = []
        rank = -1
        with contextlib.suppress(ValueError):  # no more; a loop over all ranks would take long
            while True:
                rank = self.node_of.index(node, rank + 1)
                ranks.append(rank)
        return ranks


def layout_from_environment(step: SlurmStep) -> Layout:
    """Returns the layout of the step, computed from its variables alone.

    Raises:
        UnknownLayoutError: if the variables do not describe the layout.
        LayoutError: if they contradict each other.
        EnvironmentValueError: if a necessary variable is missing.
    """
    names, tasks_on = nodes_and_counts(step)
    count_of = dict(zip(names, tasks_on))
    components = step.components_in_step
    hosts = [host for component in components for host in component.nodes]
    if step.is_component:  # in every task, whether or not its own place would fit the layout
        raise _unknown(step, _HET_IN_PLAIN)
    if components and sorted(hosts) != sorted(names):
        raise _unknown(
            step,
            f"SLURM_JOB_NODELIST_HET_GROUP_… have the nodes {short_hostlist(hosts)}, and "
            f"SLURM_STEP_NODELIST has {short_hostlist(names)}, but no variable shows how many "
            "tasks each component has on a node of several. Give each component its own nodes (for "
            "example with --exclusive)",
        )
    # In a heterogeneous step the step's own SLURM_DISTRIBUTION is not used: it differs by task.
    whole = Component(
        group=0,
        nodes=names,
        distribution=step.distribution,
        plane_size=step.plane_size,
    )
    nodes: list[str] = []
    node_of: list[int] = []
    unambiguous = True
    for component in components or [whole]:
        counts = [count_of[host] for host in component.nodes]
        plane_size = _find_plane_size(step, counts, component)
        # Each node in turn gets as many ranks as a plane has, until it has all of its ranks. Ranks
        # and node ids count on through all components.
        left = list(enumerate(counts, len(nodes)))
        while left:
            for node, count in left:
                node_of += [node] * min(count, plane_size)
            left = [(node, count - plane_size) for node, count in left if count > plane_size]
        nodes += component.nodes
        # block and cyclic are the same only where all nodes but the last have one task
        if components and not component.distribution and max(counts[:-1], default=1) > 1:
            unambiguous = False
    return make_layout(step, nodes, node_of, components)._replace(unambiguous=unambiguous)


def _unknown(step: SlurmStep, reason: str) -> UnknownLayoutError:
    return UnknownLayoutError(f"the layout of job step {step.name} cannot be known: {reason}.")


def make_layout(
    step: SlurmStep,
    nodes: Sequence[str],
    node_of: ByRank,
    components: Sequence[Component],
) -> Layout:
    """Returns the layout with these nodes, given by rank the index of its node."""
    numbers_on = [itertools.count() for _ in nodes]  # the ranks on each node are numbered from 0
    # The tasks of a heterogeneous step have different values of SLURM_DISTRIBUTION.
    distribution = " : ".join(component.distribution or "block" for component in components)
    return Layout(
        nodes=tuple(nodes),
        node_of=node_of,
        local_rank_of=list(map(next, map(numbers_on.__getitem__, node_of))),
        distribution=distribution or step.distribution or "block",
        components=components,
    )


def verify_layout(layout: Layout, step: SlurmStep) -> None:
    """Compares the layout with the variables that say where this task runs.

    Raises:
        UnknownLayoutError: if a variable of this task contradicts the layout.
    """
    rank = step.require(SlurmStep.rank)
    node = layout.node_of[rank]
    for name, value, computed in (
        ("SLURMD_NODENAME", step.node_name, layout.nodes[node]),
        ("SLURM_NODEID", step.node_id, node),
        ("SLURM_LOCALID", step.local_rank, layout.local_rank_of[rank]),
        ("SLURM_GTIDS", step.node_ranks, ",".join(map(str, layout.ranks_on(node)))),
    ):
        if value not in (None, computed):
            raise UnknownLayoutError(
                f"rank {rank} of job step {step.name} has {name}={value!s:.100}, but "
                f"{layout.distribution} distribution over {short_hostlist(layout.nodes)} "
                f"({layout.source}) gives it {computed!s:.100}: where the ranks run cannot be "
                f"known. {RESTART_HINT} Or {_HET_IN_PLAIN}. Or a component got its own "
                "--distribution from srun, which no variable shows: give it to salloc or sbatch as "
                "well (salloc -N2 -m cyclic : …). Or correct tasks_per_node."
            )


def set_tasks_per_node(step: SlurmStep, tasks_per_node: TasksPerNode) -> SlurmStep:
    """Returns the step with these numbers of tasks in place of what Slurm says."""
    nodes = step.nodes or []
    counts = tasks_per_node
    if not isinstance(counts, Mapping):
        nodes = step.require(SlurmStep.nodes)
        counts = dict.fromkeys(nodes, counts)
    if not counts or None in map(whole_number, counts.values()):
        raise LayoutError(
            f"tasks_per_node={tasks_per_node!r}: expected a whole number of tasks, for every node "
            "or by node name."
        )
    # Ranks follow Slurm's order of the nodes, whatever order a dict has.
    if set(counts) != set(nodes):
        nodes = list(counts)
    return step.replace(
        nodes=nodes,
        num_nodes=len(nodes),
        tasks_per_node=tuple(counts[node] for node in nodes),
    )


def nodes_and_counts(step: SlurmStep) -> tuple[Nodes, Counts]:
    """Returns the names of the step's nodes, and the number of tasks on each.

    Raises:
        LayoutError: if the variables contradict each other.
        EnvironmentValueError: if one of them is missing.
    """
    nodes = step.require(SlurmStep.nodes)
    counts = step.require(SlurmStep.tasks_per_node)
    total = sum(counts)
    if (
        len(counts) == len(nodes) == len(set(nodes))
        and min(counts, default=0) > 0
        and total <= MAX_HOSTS
        and step.num_tasks in (None, total)
        and step.num_nodes in (None, len(nodes))
    ):
        if (step.rank or 0) < total:
            return nodes, counts
        raise LayoutError(
            f"SLURM_PROCID={step.rank}; expected a rank from 0 to {total - 1}, those of job step "
            f"{step.name}. {RESTART_HINT}"
        )
    raise LayoutError(
        f"SLURM_STEP_NODELIST has {len(nodes)} nodes ({short_hostlist(nodes)}), "
        f"SLURM_STEP_TASKS_PER_NODE or tasks_per_node has {len(counts)} counts and {total} tasks, "
        f"SLURM_STEP_NUM_NODES={step.num_nodes} and SLURM_STEP_NUM_TASKS={step.num_tasks}; "
        "expected each node once, one count for each node, 1 or more, the same numbers in all "
        f"variables, and at most {MAX_HOSTS:,} tasks. {RESTART_HINT} Or correct tasks_per_node."
    )


def _find_plane_size(step: SlurmStep, counts: Counts, component: Component) -> int:
    """Returns how many ranks each node gets in its turn, in a component or a whole step."""
    if len(counts) == 1:
        return counts[0]
    distribution = component.distribution or "block"
    if distribution == "cyclic":
        return 1
    if distribution == "block" and not step.sluid:
        return max(counts)
    if distribution == "plane" and component.plane_size:
        return component.plane_size
    if distribution == "arbitrary":
        reason = (
            "SLURM_DISTRIBUTION=arbitrary, and Slurm does not pass the list of hosts to the tasks. "
            "Start with another distribution, such as `srun --distribution=plane=N`"
        )
    elif distribution == "block":
        # Also where SLURM_TOPOLOGY_ADDR_PATTERN is "node": it is the cluster's default, and a
        # partition may have another topology, or topology/flat the option alpha_step_rank.
        reason = (
            "this is Slurm 26.05 or later (SLURM_JOB_SLUID is set), where topology may order the "
            "nodes for block distribution in a way that no variable shows. Start with `srun -m "
            "plane=N`, which is block in a known order of the nodes if N tasks run on each, or "
            "with `srun -m cyclic`"
        )
    else:
        reason = (
            "SLURM_DISTRIBUTION=plane, but SLURM_DIST_PLANESIZE is not set; expected the size of "
            "the planes. Start with `srun --distribution=plane=N`"
        )
    raise _unknown(step, reason)
