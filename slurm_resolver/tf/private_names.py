"""The private names of TensorFlow's resolver that subclasses read, as of its constructor's end.

A published subclass may override `cluster_spec` with a changed copy of TensorFlow's, which lays
tasks out by `_task_configuration` and the like: tensorflow/python/distribute/cluster_resolver/
slurm_cluster_resolver.py.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Any, Dict, List

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.ports import DEFAULT_PORT


class PrivateNames:
    """Makes each of these values when it is first read; a subclass may set them as well."""

    _cluster: Cluster
    _options: ClusterOptions

    @cached_property
    def _rank(self) -> Any:  # None outside of a step; TensorFlow's is a number
        return self._cluster.task.rank if self._cluster.task else None

    @cached_property
    def _jobs(self) -> Dict[str, int]:
        given = dict.fromkeys(self._options.jobs or {}, 0)
        return {**given, **Counter(task.job for task in self._cluster.tasks)}

    @cached_property
    def _task_configuration(self) -> Dict[str, int]:
        """The number of tasks by node."""
        return dict(Counter(task.node for task in self._cluster.tasks))

    @cached_property
    def _port_base(self) -> int:
        """The port of the first task on each node."""
        tasks = self._cluster.tasks
        return int(tasks[0].address.rpartition(":")[2]) if tasks else DEFAULT_PORT

    @cached_property
    def _gpus_per_node(self) -> int:
        if self._options.gpus_per_node is not None:
            return self._options.gpus_per_node
        gpus = self._cluster.gpu_decision
        shown = gpus.visible_before if gpus is not None else None
        return max(len(shown or ()), self._cluster.step.gpus_on_node or 0)

    @cached_property
    def _gpus_per_task(self) -> int:
        if self._options.gpus_per_task is not None:
            return self._options.gpus_per_task
        return self._gpus_per_node // max(self._task_configuration.values(), default=1)

    @cached_property
    def _cluster_allocation(self) -> Dict[str, List[str]]:
        return self._cluster.jobs()
