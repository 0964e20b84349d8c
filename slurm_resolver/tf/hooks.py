"""The methods that subclasses of TensorFlow's resolver override, and the argument `tasks_per_node`.

The reference is tensorflow/python/distribute/cluster_resolver/slurm_cluster_resolver.py.
"""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Union

from slurm_resolver.cluster.alone import short_name
from slurm_resolver.cluster.jobs import job_counts
from slurm_resolver.cluster.layout import Layout, layout_from_environment, verify_layout
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.resolve import StepAndLayout, find_layout
from slurm_resolver.errors import LayoutError, UnknownLayoutError
from slurm_resolver.slurm.hostlist import short_hostlist
from slurm_resolver.slurm.step import SlurmStep
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
        if self._step.num_tasks is None and self._step.tasks_per_node is not None:
            return sum(self._step.tasks_per_node)
        return self._step.require(SlurmStep.num_tasks)

    def _resolve_hostlist(self) -> list[str]:
        """Returns the names of the step's nodes. May be overridden."""
        return [*self._step.require(SlurmStep.nodes)]

    def _resolve_task_configuration(self) -> dict[str, int]:
        """Returns the number of tasks on each node, by name, in node order. May be overridden."""
        hosts = self._resolve_hostlist()
        counts = self._step.require(SlurmStep.tasks_per_node)
        if len(hosts) != len(counts):
            raise LayoutError(
                f"the number of nodes from _resolve_hostlist() is {len(hosts)}, but that of counts "
                f"in SLURM_STEP_TASKS_PER_NODE is {len(counts)}; override "
                "_resolve_task_configuration() as well."
            )
        return dict(zip(hosts, counts))

    def _layout_by_hooks(self, step: SlurmStep, options: ClusterOptions) -> StepAndLayout:
        """Returns the layout, and the step as corrected by argument and overridden methods."""
        by_counts = self._tasks_per_node is not None or {_RANK, _COUNTS} & {*self._hooks}
        if not by_counts and step.where == "step":
            layout = find_layout(step, options)
            nodes = step.nodes or layout.nodes
            names = self._resolve_hostlist()
            if set(names) != set(nodes):  # the order of the same names may be that of a set
                if len(nodes) != len(names):
                    raise LayoutError(
                        f"the number of names from _resolve_hostlist() is {len(names)}, but that "
                        f"of nodes in SLURM_STEP_NODELIST is {len(nodes)}; expected one name for "
                        "each node, in the same order."
                    )
                name_of = dict(zip(nodes, names))
                layout = layout._replace(nodes=tuple(name_of[node] for node in layout.nodes))
            step = step.replace(node_name=None)  # Slurm's names may not resolve
        else:
            step, layout = self._layout_by_counts(step, options)
        if self._hooks and options.jobs is None:
            job_counts({"worker": self._resolve_num_tasks()}, layout.num_tasks)
        return step, layout

    def _layout_by_counts(self, step: SlurmStep, options: ClusterOptions) -> StepAndLayout:
        rank = self._resolve_own_rank()
        hooks = self._hooks
        if hooks:
            # Slurm's variables describe its own task of that rank, not the subclass's.
            step = step.replace(
                rank=rank,
                num_tasks=None,
                node_id=None,
                local_rank=None,
                node_name=None,
                node_ranks=None,
            )
        if _RANK in hooks:
            # Slurm's distribution does not apply to ranks that are not Slurm's: TensorFlow counts
            # them node by node.
            step = step.replace(
                distribution=None,
                plane_size=None,
                sluid=None,
                is_component=False,
                components=(),
            )
        counts = self._counts_by_node()
        nodes = tuple(counts)
        # Ranks follow Slurm's order of the nodes, whatever order a dict or set has.
        if step.nodes is not None and set(nodes) == set(step.nodes):
            nodes = step.nodes
        elif hooks:
            if _COUNTS in hooks:  # a set's order differs from process to process
                nodes = tuple(sorted(nodes, key=_by_numbers))
            step = step.replace(components=())
        step = step.replace(
            nodes=nodes,
            num_nodes=len(nodes),
            tasks_per_node=tuple(counts[node] for node in nodes),
        )
        source = "tasks_per_node" if self._tasks_per_node is not None else ", ".join(hooks)
        if not hooks:  # each task is where Slurm says, and may tell the others
            return step, find_layout(step, options, source)
        layout = layout_from_environment(step, source)
        verify_layout(layout, step)
        _check_host(layout, rank)
        return step, layout

    def _counts_by_node(self) -> dict[str, int]:
        tasks_per_node = self._tasks_per_node
        if tasks_per_node is None:
            given = dict(self._resolve_task_configuration())
        elif isinstance(tasks_per_node, Mapping):
            given = dict(tasks_per_node)
        else:
            given = dict.fromkeys(self._resolve_hostlist(), tasks_per_node)
        if not given:
            source = "tasks_per_node" if tasks_per_node is not None else _COUNTS
            raise LayoutError(f"{source} names no node; expected the number of tasks on each node.")
        for host, count in given.items():
            if whole_number(count, least=-math.inf) is None:
                raise LayoutError(
                    f"{count!r} tasks on node {host!r}; expected a whole number from "
                    "tasks_per_node or _resolve_task_configuration()."
                )
        return {host: int(count) for host, count in given.items()}


def _by_numbers(name: str) -> tuple[str, str]:
    """Sorts names as Slurm does: n9 before n10."""
    return re.sub("[0-9]+", lambda number: number[0].zfill(9), name), name


def _check_host(layout: Layout, rank: int) -> None:
    """Raises UnknownLayoutError if the layout puts this task on another machine."""
    host = short_name(socket.gethostname())
    node = layout.nodes[layout.node_of[rank]]
    if host != short_name(node) and host in map(short_name, layout.nodes):
        raise UnknownLayoutError(
            f"rank {rank} runs on {host}, but the overridden methods ({layout.source}) give it "
            f"{node}: ranks are counted host by host, in the order {short_hostlist(layout.nodes)}. "
            "Start them in that order, or override none of the methods."
        )
