"""The resolved step: everything that a task knows about the tasks of its step."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field
from typing import Any

from slurm_resolver.cluster.addresses import Hosts, JobAddresses, Task
from slurm_resolver.cluster.layout import Layout
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.ports import Ports
from slurm_resolver.cluster.roles import Roles
from slurm_resolver.cluster.task_gpus import TaskGpus
from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.slurm.step_variables import SlurmStep


@dataclass(frozen=True, repr=False)
class ResolvedStep:
    """The fields of a `Cluster`, which explains them, and what follows from them."""

    step: SlurmStep = field(default_factory=SlurmStep)
    layout: Layout = Layout()
    roles: Roles = field(default_factory=dict)
    ports: Ports = Ports()
    hosts: Hosts = field(default_factory=dict)
    addresses: JobAddresses = field(default_factory=dict)
    service: ServiceAddress | None = None
    gpu_decision: TaskGpus = TaskGpus()  # noqa: RUF009 (it cannot be changed)
    options: ClusterOptions = field(default=ClusterOptions(), compare=False)

    def __bool__(self) -> bool:
        """Whether there are tasks; an empty cluster is false."""
        return bool(self.roles)

    @functools.cached_property
    def tasks(self) -> tuple[Task, ...]:
        """Every task of the step, ``tasks[rank]``.

        It is made at the first use: TensorFlow needs only the addresses, and a step may be large.
        """
        tasks = (
            self._task(job, index)
            for job, ranks in self.roles.items()
            for index in range(len(ranks))
        )
        return tuple(sorted(tasks, key=operator.attrgetter("rank")))

    @functools.cached_property
    def task(self) -> Task | None:
        """The task of this process; None for an empty cluster."""
        for job, ranks in self.roles.items():
            if self.step.rank in ranks:
                return self._task(job, ranks.index(self.step.rank))
        return None

    def _task(self, job: str, index: int) -> Task:
        rank = self.roles[job][index]
        return Task(
            rank=rank,
            node=self.layout.nodes[self.layout.node_of[rank]],
            local_rank=self.layout.local_rank_of[rank],
            job=job,
            index=index,
            address=self.addresses[job][index],
        )

    @property
    def num_tasks(self) -> int:
        """The number of tasks."""
        return self.layout.num_tasks

    @property
    def gpus(self) -> tuple[str, ...] | None:
        """This task's GPUs as CUDA_VISIBLE_DEVICES names them; () for none.

        None where the environment says nothing about GPUs.
        """
        return self.gpu_decision.devices

    def name_of(self, rank: int) -> str:
        """Returns a task's name in messages: ``worker 3 (rank 3 on n9)``."""
        task = self.tasks[rank]
        return f"{task.job} {task.index} (rank {rank} on {task.node})"

    def jobs(self) -> JobAddresses:
        """Returns the addresses of each job by index, in alphabetical order of the job names.

        The evaluator is not among them, as TensorFlow keeps it outside the cluster.
        """
        return {
            job: list(addresses)
            for job, addresses in sorted(self.addresses.items())
            if job != "evaluator"
        }

    def tf_config(self) -> dict[str, Any]:
        """Returns the content of TF_CONFIG for this task; {} for an empty cluster."""
        task = self.task
        if not task:
            return {}
        return {"cluster": self.jobs(), "task": {"type": task.job, "index": task.index}}
