"""The methods that subclasses of TensorFlow's resolver override, and the argument `tasks_per_node`.

The reference is tensorflow/python/distribute/cluster_resolver/slurm_cluster_resolver.py.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from typing import Union

from slurm_resolver.cluster.alone import short_name
from slurm_resolver.cluster.jobs import job_counts
from slurm_resolver.cluster.layout import layout_from_environment, verify_layout
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.resolve import StepAndLayout, find_layout
from slurm_resolver.errors import LayoutError
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.whole_number import whole_number

TasksPerNode = Union[int, Mapping[str, int]]

_RANK = "_resolve_own_rank"
_COUNTS = "_resolve_task_configuration"


def overridden_hooks(resolver: type) -> list[str]:
    """Returns the names of the methods of `ResolverHooks` that a class overrides."""
    return [
        name
        for name in (_RANK, "_resolve_num_tasks", "_resolve_hostlist", _COUNTS)
        if getattr(resolver, name) is not getattr(ResolverHooks, name)
    ]


class ResolverHooks:
    """The four methods that subclasses override."""

    _step: SlurmStep
    _hooks: Sequence[str]  # the methods that are overridden
    _tasks_per_node: TasksPerNode | None

    def _resolve_own_rank(self) -> int:
        """Returns this task's rank. May be overridden."""
        return self._step.require(SlurmStep.rank)

    def _resolve_num_tasks(self) -> int:
        """Returns the number of tasks in the step. May be overridden."""
        return self._step.require(SlurmStep.num_tasks)

    def _resolve_hostlist(self) -> list[str]:
        """Returns the names of the step's nodes. May be overridden."""
        return [*self._step.require(SlurmStep.nodes)]

    def _resolve_task_configuration(self) -> dict[str, int]:
        """Returns the number of tasks on each node, by name, in node order. May be overridden."""
        counts = self._step.require(SlurmStep.tasks_per_node)
        return dict(zip(self._names(len(counts), "counts in SLURM_STEP_TASKS_PER_NODE"), counts))

    def _names(self, expected: int, what: str) -> list[str]:
        hosts = self._resolve_hostlist()
        nodes = self._step.nodes or ()
        if set(hosts) == set(nodes):  # the order may be that of a set
            hosts = list(nodes)
        if len(set(hosts)) != expected:
            raise LayoutError(
                f"the number of nodes from _resolve_hostlist() is {len(set(hosts))}, but that of "
                f"{what} is {expected}; expected one name for each node, in the same order, or "
                "override _resolve_task_configuration() as well."
            )
        return hosts

    def _layout_by_hooks(self, step: SlurmStep, options: ClusterOptions) -> StepAndLayout:
        """Returns the layout, and the step as corrected by argument and overridden methods."""
        by_counts = self._tasks_per_node is not None or {_RANK, _COUNTS} & {*self._hooks}
        if by_counts or step.where != "step":
            step, layout = self._layout_by_counts(step, options)
        else:  # each task is where Slurm says, on a node with another name
            layout = find_layout(step, options)
            nodes = step.nodes or layout.nodes
            name_of = dict(zip(nodes, self._names(len(nodes), "nodes in SLURM_STEP_NODELIST")))
            layout = layout._replace(nodes=tuple(name_of[node] for node in layout.nodes))
            step = step.replace(node_name=None)  # Slurm's names may not resolve
        if self._hooks and options.jobs is None:
            job_counts({"worker": self._resolve_num_tasks()}, layout.num_tasks)
        return step, layout

    def _layout_by_counts(self, step: SlurmStep, options: ClusterOptions) -> StepAndLayout:
        hooks = self._hooks
        counts = self._counts_by_node()
        nodes = tuple(counts)
        # Ranks follow Slurm's order of the nodes, whatever order a dict or set has.
        if set(nodes) == set(step.nodes or ()):
            nodes = step.require(SlurmStep.nodes)
        elif hooks:
            step = step.replace(components=())
            if _COUNTS in hooks:
                nodes = tuple(sorted(nodes, key=_by_numbers))
        step = step.replace(
            nodes=nodes,
            num_nodes=len(nodes),
            tasks_per_node=tuple(counts[node] for node in nodes),
        )
        source = "tasks_per_node" if self._tasks_per_node is not None else ", ".join(hooks)
        if not hooks:  # each task is where Slurm says, and may tell the others
            return step, find_layout(step, options, source)
        # The order of the nodes is given. Slurm's names may not resolve.
        step = step.replace(num_tasks=None, sluid=None, node_name=None)
        if _RANK in hooks:
            # Slurm's other variables describe its own task of that rank. Its distribution does not
            # apply either: TensorFlow counts ranks node by node.
            step = step.replace(
                rank=self._resolve_own_rank(),
                node_id=None,
                local_rank=None,
                node_ranks=None,
                distribution=None,
                plane_size=None,
                is_component=False,
                components=(),
            )
        layout = layout_from_environment(step, source)
        host = short_name(socket.gethostname())
        here = [node for node in nodes if short_name(node) == host]
        verify_layout(layout, step.replace(node_name=here[0] if here else None))
        return step, layout

    def _counts_by_node(self) -> Mapping[str, int]:
        counts = self._tasks_per_node
        if counts is None:
            counts = self._resolve_task_configuration()
        elif not isinstance(counts, Mapping):
            counts = dict.fromkeys(self._resolve_hostlist(), counts)
        if not counts or None in map(whole_number, counts.values()):
            raise LayoutError(
                f"the number of tasks on each node is {dict(counts)!r}; expected a whole number "
                "for each, from tasks_per_node or _resolve_task_configuration()."
            )
        return counts


def _by_numbers(name: str) -> tuple[str, str]:
    """Sorts names as Slurm does: n9 before n10."""
    return re.sub("[0-9]+", lambda number: number[0].zfill(9), name), name
