"""The four methods of TensorFlow's resolver that subclasses override, and `tasks_per_node`.

What they say takes the place of what Slurm says: tensorflow/python/distribute/cluster_resolver/
slurm_cluster_resolver.py.
"""

from __future__ import annotations

import re
import socket
from numbers import Integral
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

from slurm_resolver.cluster.alone import short_name
from slurm_resolver.cluster.jobs import job_counts
from slurm_resolver.cluster.layout import Layout, layout_from_environment, verify_layout
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.resolve import LayoutOf, find_layout
from slurm_resolver.errors import LayoutError, UnknownLayoutError
from slurm_resolver.slurm.hostlist import short_hostlist
from slurm_resolver.slurm.step import SlurmStep

TasksPerNode = Union[int, Mapping[str, int]]

_HOOKS = (
    "_resolve_own_rank",
    "_resolve_num_tasks",
    "_resolve_hostlist",
    "_resolve_task_configuration",
)


class ResolverHooks:
    """The four methods as the variables of the step answer them, and what overriding them does."""

    _step: SlurmStep

    def _resolve_own_rank(self) -> int:
        """Returns this task's rank. May be overridden."""
        return int(self._step.require(SlurmStep.rank))

    def _resolve_num_tasks(self) -> int:
        """Returns the number of tasks in the step. May be overridden."""
        if self._step.num_tasks is None and self._step.tasks_per_node is not None:
            return sum(self._step.tasks_per_node)
        return int(self._step.require(SlurmStep.num_tasks))

    def _resolve_hostlist(self) -> List[str]:
        """Returns the names of the step's nodes. May be overridden."""
        nodes = self._step.require(SlurmStep.nodes)
        return list(nodes)

    def _resolve_task_configuration(self) -> Dict[str, int]:
        """Returns the number of tasks on each node, by name, in node order. May be overridden."""
        hosts = self._resolve_hostlist()
        counts = self._step.require(SlurmStep.tasks_per_node)
        if len(hosts) != len(counts):
            raise LayoutError(
                f"_resolve_hostlist() gives {len(hosts)} nodes, but SLURM_STEP_TASKS_PER_NODE has "
                f"{len(counts)} counts; override _resolve_task_configuration() as well."
            )
        return dict(zip(hosts, counts))

    def _overridden(self) -> List[str]:
        """Returns the names of those methods that a subclass has overridden."""
        own = type(self)
        return [name for name in _HOOKS if getattr(own, name) is not getattr(ResolverHooks, name)]

    def _given_layout(
        self, tasks_per_node: Optional[TasksPerNode]
    ) -> Tuple[Optional[LayoutOf], bool]:
        """Returns what takes the place of Slurm's layout, and whether it says the rank as well."""
        hooks = self._overridden()
        if not hooks and tasks_per_node is None:
            return None, False

        def layout_of(step: SlurmStep, options: ClusterOptions) -> Tuple[SlurmStep, Layout]:
            step, layout = self._layout_by_hooks(hooks, tasks_per_node, step, options)
            if hooks and options.jobs is None:
                job_counts({"worker": self._resolve_num_tasks()}, layout.num_tasks)
            return step, layout

        return layout_of, bool(hooks)

    def _layout_by_hooks(
        self,
        hooks: Sequence[str],
        tasks_per_node: Optional[TasksPerNode],
        step: SlurmStep,
        options: ClusterOptions,
    ) -> Tuple[SlurmStep, Layout]:
        """Returns the layout, and the step as corrected by argument and overridden methods."""
        if tasks_per_node is None and set(hooks) == {"_resolve_hostlist"} and step.place == "step":
            layout = find_layout(step, options)
            renamed = _rename(layout, step.nodes or layout.nodes, self._resolve_hostlist())
            return step.replace(node_name=None), renamed  # Slurm's names may lead nowhere
        rank = self._resolve_own_rank()
        if hooks:
            # What Slurm says of this task is about its own idea of it, not the subclass's.
            step = step.replace(
                rank=rank,
                num_tasks=None,
                node_id=None,
                local_rank=None,
                node_name=None,
                node_ranks=None,
            )
        if "_resolve_own_rank" in hooks:
            # These ranks are not Slurm's, so that its distribution says nothing about them:
            # TensorFlow counts them node by node.
            step = step.replace(
                **dict.fromkeys(("distribution", "plane_size", "sluid", "topology_pattern")),
                is_component=False,
                components=(),
            )
        if tasks_per_node is None and "_resolve_task_configuration" not in hooks:
            hosts = self._resolve_hostlist()
            if step.nodes is None:
                step = step.replace(nodes=tuple(hosts), num_nodes=None)
            nodes = step.require(SlurmStep.nodes)
            layout = layout_from_environment(step, ", ".join(hooks) or "environment")
            if "_resolve_hostlist" in hooks:
                layout = _rename(layout, nodes, hosts)
        else:
            configuration = self._configuration(tasks_per_node)
            # Ranks follow Slurm's order of the nodes, whatever order a dict was written in.
            if step.nodes is not None and set(configuration) == set(step.nodes):
                configuration = {host: configuration[host] for host in step.nodes}
            elif hooks:
                # The order of a dict may be that of a set, which differs from process to process.
                configuration = dict(sorted(configuration.items(), key=_by_numbers))
                step = step.replace(components=())
            step = step.replace(
                nodes=tuple(configuration),
                num_nodes=len(configuration),
                tasks_per_node=tuple(configuration.values()),
            )
            source = "tasks_per_node" if tasks_per_node is not None else ", ".join(hooks)
            if not hooks:  # each task is where Slurm says, and may tell the others
                return step, find_layout(step, options, source)
            layout = layout_from_environment(step, source)
        verify_layout(layout, step)
        if hooks:
            _check_host(layout, rank)
        return step, layout

    def _configuration(self, tasks_per_node: Optional[TasksPerNode]) -> Dict[str, int]:
        if tasks_per_node is None:
            given = dict(self._resolve_task_configuration())
        elif isinstance(tasks_per_node, Mapping):
            given = dict(tasks_per_node)
        else:
            given = dict.fromkeys(self._resolve_hostlist(), tasks_per_node)
        if not given:
            source = "tasks_per_node" if tasks_per_node is not None else _HOOKS[-1]
            raise LayoutError(f"{source} names no node; expected the number of tasks on each node.")
        for host, count in given.items():
            if isinstance(count, bool) or not isinstance(count, Integral):
                raise LayoutError(f"{count!r} tasks on node {host!r}; expected a whole number.")
        return {host: int(count) for host, count in given.items()}


def _rename(layout: Layout, nodes: Sequence[str], names: Sequence[str]) -> Layout:
    """Returns the layout with other names for the same nodes, in the same order."""
    if set(names) == set(nodes):
        return layout  # the same names: their order may be that of a set
    if len(nodes) != len(names):
        raise LayoutError(
            f"_resolve_hostlist() gives {len(names)} names for the {len(nodes)} nodes of "
            "SLURM_STEP_NODELIST; expected one a node, in the same order."
        )
    name_of = dict(zip(nodes, names))
    return layout._replace(nodes=tuple(name_of[node] for node in layout.nodes))


def _by_numbers(item: Tuple[str, int]) -> List[Tuple[int, str]]:
    """Sorts names as Slurm does: n9 before n10."""
    parts = re.split("([0-9]+)", item[0])
    return [(int(part) if part.isdecimal() else -1, part) for part in parts]


def _check_host(layout: Layout, rank: int) -> None:
    """Raises UnknownLayoutError where the layout puts this task on another machine."""
    host, node = short_name(socket.gethostname()), layout.nodes[layout.node_of[rank]]
    if host != short_name(node) and host in map(short_name, layout.nodes):
        raise UnknownLayoutError(
            f"rank {rank} runs on {host}, but the overridden methods ({layout.source}) give it "
            f"{node}: ranks are counted host by host, in the order {short_hostlist(layout.nodes)}. "
            "Start them in that order, or override none of the methods."
        )
