"""The resolver's argument `tasks_per_node`, which takes the place of what Slurm says.

The reference is tensorflow/python/distribute/cluster_resolver/slurm_cluster_resolver.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.resolve import StepAndLayout, find_layout
from slurm_resolver.errors import LayoutError
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.slurm.whole_number import whole_number

TasksPerNode = Union[int, Mapping[str, int]]

# What subclasses of TensorFlow's resolver may override.
HOOKS = (
    "_resolve_own_rank",
    "_resolve_num_tasks",
    "_resolve_hostlist",
    "_resolve_task_configuration",
)


def refuse_hooks(resolver: type) -> None:
    """Raises LayoutError if a subclass has a private method that TensorFlow's resolver calls."""
    names = [name for name in HOOKS if hasattr(resolver, name)]
    if names:
        raise LayoutError(
            f"{resolver.__name__} has {', '.join(names)}, which only TensorFlow's resolver calls. "
            "Expected arguments instead: tasks_per_node for the number of tasks on each node, and "
            "node_address for other names of the nodes; the ranks are Slurm's."
        )


def layout_by_counts(
    tasks_per_node: TasksPerNode, step: SlurmStep, options: ClusterOptions
) -> StepAndLayout:
    """Returns the layout with these numbers of tasks, and the step as corrected by them."""
    counts = tasks_per_node
    if not isinstance(counts, Mapping):
        hosts = step.require(SlurmStep.nodes)
        counts = dict.fromkeys(hosts, counts)
    if not counts or None in map(whole_number, counts.values()):
        raise LayoutError(
            f"the number of tasks on each node is {dict(counts)!r}; expected a whole number for "
            "each, from tasks_per_node."
        )
    nodes = tuple(counts)
    # Ranks follow Slurm's order of the nodes, whatever order a dict has.
    if set(nodes) == set(step.nodes or ()):
        nodes = step.require(SlurmStep.nodes)
    step = step.replace(
        nodes=nodes,
        num_nodes=len(nodes),
        tasks_per_node=tuple(counts[node] for node in nodes),
    )
    # Each task is where Slurm says, and may tell the others.
    return step, find_layout(step, options, source="tasks_per_node")
