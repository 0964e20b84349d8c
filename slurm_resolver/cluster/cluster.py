"""`Cluster`: everything that a task knows about the tasks of its step, for people and programs."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_resolver.cluster.addresses import Hosts, JobAddresses, Task
from slurm_resolver.cluster.frameworks import CONTRACTS, TEMPLATES, Contract
from slurm_resolver.cluster.layout import Layout
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.ports import Ports
from slurm_resolver.cluster.roles import Roles
from slurm_resolver.cluster.task_gpus import TaskGpus
from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.slurm.gpu_variables import numbered
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.slurm.variable_types import Exports
from slurm_resolver.wording import aligned, counted

_NO_CLUSTER = "no cluster: this process trains alone"


@dataclass(frozen=True, repr=False)
class Cluster:
    """All tasks of a step with their jobs, indices and addresses, and which of them this one is.

    Outside Slurm it is empty: false, without tasks, and `task` is None.

    Attributes:
        step: the variables, as changed by arguments of the resolver.
        layout: where every rank runs.
        roles: the ranks of each job, ``roles[job][index]``.
        ports: the ports of the step's tasks.
        hosts: by node, the host to connect to.
        service: the address of the step's coordination service; None for an empty cluster.
        gpu_decision: the GPUs of this task, and the reason.
        options: the arguments of `resolve`; ignored when clusters are compared.
    """

    step: SlurmStep = field(default_factory=SlurmStep)
    layout: Layout = Layout()
    roles: Roles = field(default_factory=dict)
    ports: Ports = Ports()
    hosts: Hosts = field(default_factory=dict)
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

    @functools.cached_property
    def addresses(self) -> JobAddresses:
        """The addresses of each job, ``addresses[job][index]``."""
        host_of = list(map(self.hosts.__getitem__, self.layout.nodes))
        port_of = [f":{port}" for port in self.ports.by_local_rank]
        node_of = self.layout.node_of
        local_rank_of = self.layout.local_rank_of
        return {
            job: [host_of[node_of[rank]] + port_of[local_rank_of[rank]] for rank in ranks]
            for job, ranks in self.roles.items()
        }

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

    @property
    def gpus_text(self) -> str:
        """The GPUs of this task for people, such as "0,1", "none" or "unknown"."""
        return "unknown" if self.gpus is None else ",".join(self.gpus) or "none"

    def name_of(self, rank: int) -> str:
        """Returns a task's name in messages: ``worker 3 (rank 3 on n9)``."""
        task = self.tasks[rank]
        return f"{task.job} {task.index} (rank {rank} on {task.node})"

    def jobs(self) -> JobAddresses:
        """Returns the addresses of each job by index, in alphabetical order of the job names.

        The evaluator is not among them, as TensorFlow keeps it outside the cluster.
        """
        return {
            job: [*addresses]
            for job, addresses in sorted(self.addresses.items())
            if job != "evaluator"
        }

    def tf_config(self) -> dict[str, Any]:
        """Returns the content of TF_CONFIG for this task; {} for an empty cluster."""
        task = self.task
        if not task:
            return {}
        return {"cluster": self.jobs(), "task": {"type": task.job, "index": task.index}}

    def variables(self, contract: Contract) -> Exports:
        """Returns the variables that describe the cluster to a framework's programs.

        Args:
            contract: "tensorflow" (TF_CONFIG), "keras-distribution", "torch" or "jax".

        Returns:
            the variables to set before this task's program starts; {} for an empty cluster.

        Raises:
            ValueError: for another contract.
        """
        if contract not in CONTRACTS:
            raise ValueError(f"contract={contract!r}: expected one of {', '.join(CONTRACTS)}")
        task = self.task
        if not task:
            return {}
        node = self.layout.node_of[task.rank]
        values = {
            **self.placeholders(),
            "tf_config": json.dumps(self.tf_config()),
            "node_number": node,
            "tasks_on_node": len(self.layout.ranks_on(node)),
            # A program of PyTorch uses the GPU with this number. Slurm may show it fewer than the
            # node has.
            "gpu": task.local_rank % len(self.gpu_decision.visible_before or self.tasks),
            "gpus": ",".join(numbered(self.gpus or ())),
        }
        return {
            name: value
            for name, text in TEMPLATES[contract].items()
            if (value := text.format(**values))
        }

    def placeholders(self) -> dict[str, str]:
        """Returns the value of each {name} in a program's arguments and variables.

        Lists are separated by commas, in the order of index or rank. All are "" for an empty
        cluster.
        """
        addresses = [task.address for task in self.tasks]
        values = {name: str(getattr(self.task, name, "")) for name in Task.__annotations__}
        values.update(
            hosts=",".join(addresses),
            num_tasks=str(len(addresses) or ""),
            main_address="".join(addresses[:1]),
        )
        for job, name in (("ps", "ps_hosts"), ("worker", "worker_hosts"), ("chief", "chief_host")):
            values[name] = ",".join(self.addresses.get(job, ()))
        for prefix in ("", "main_"):
            host, _, port = values[f"{prefix}address"].rpartition(":")
            values[f"{prefix}host"] = host.strip("[]")  # of an IPv6 address
            values[f"{prefix}port"] = port
        return values

    def to_dict(self) -> dict[str, Any]:
        """Returns the cluster as plain values, as ``slurm-resolver show --json`` prints them."""
        task = self.task
        return {
            "job_id": self.step.job_id,
            "step_id": self.step.step_id,
            "distribution": self.layout.distribution if self else None,
            "layout_source": self.layout.source if self else None,
            "ports_source": self.ports.source if self else None,
            "self": task
            and {
                "rank": task.rank,
                "job": task.job,
                "index": task.index,
                "gpus": self.gpus and [*self.gpus],
                "gpus_source": self.gpu_decision.source,
            },
            "tasks": [{**vars(task)} for task in self.tasks],
        }

    def own_task_text(self) -> str:
        """Returns one line: ``rank 1 of 4 is worker 0 on n9, port 23001, GPUs 0,1``."""
        task = self.task
        if not task:
            return _NO_CLUSTER
        return (
            f"rank {task.rank} of {self.num_tasks} is {task.job} {task.index} on {task.node}, "
            f"port {task.address.rpartition(':')[2]}, GPUs {self.gpus_text}"
        )

    def text(self, most_tasks: int | None = None, gpus: Sequence[str] = ()) -> str:
        """Returns the whole cluster, a line per task, and the reason for this task's GPUs.

        The first task of each node names the node.

        Args:
            most_tasks: of a larger cluster only the tasks of the first nodes are shown; None shows
                all.
            gpus: the `gpus_text` of all tasks by rank; () if only its own are known.
        """
        if not self:
            return _NO_CLUSTER
        layout = self.layout
        tasks = sorted(self.tasks, key=lambda task: layout.node_of[task.rank])[:most_tasks]
        rows = [["node", "rank", "local", "task", *(gpus and ["GPUs"]), "address"]]
        rows += [
            [
                "" if task.local_rank else task.node,
                str(task.rank),
                str(task.local_rank),
                f"{task.job} {task.index}",
                *gpus[task.rank : task.rank + 1],
                task.address + ("  (this task)" if task == self.task else ""),
            ]
            for task in tasks
        ]
        jobs = (f"{job} {len(ranks)}" for job, ranks in sorted(self.roles.items()))
        step = (
            f"job step {self.step.name}: {counted(self.num_tasks, 'task')} on "
            f"{counted(len(layout.nodes), 'node')}, {layout.distribution} distribution "
            f"(from {layout.source}), ports from {self.ports.source}"
        )
        lines = [step, f"jobs: {', '.join(jobs)}", *aligned(rows, numbers=(1, 2))]
        left_out = self.num_tasks - len(tasks)
        if left_out:
            more = counted(left_out, "more task")
            lines.append(f"… and {more}: `slurm-resolver show` prints all")
        lines.append(f"GPUs of this task: {self.gpus_text} ({self.gpu_decision.source})")
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Returns a short text for logs."""
        return f"<Cluster of step {self.step.name}: {self.own_task_text()}>"

    def __str__(self) -> str:
        """Returns the cluster as `print` shows it: a line per task, of 100 tasks at most."""
        return self.text(most_tasks=100)
