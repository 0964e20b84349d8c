"""The resolved cluster: everything that a task knows about its step."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_resolver.cluster.addresses import Hosts, Task, find_service
from slurm_resolver.cluster.frameworks import CONTRACTS, TEMPLATES, Contract
from slurm_resolver.cluster.gpus import TaskGpus
from slurm_resolver.cluster.layout import Layout
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.ports import Ports
from slurm_resolver.cluster.roles import Roles
from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.slurm.gpu_variables import numbered
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.wording import aligned, counted

_NO_CLUSTER = "no cluster: this process trains alone"


@dataclass(frozen=True, repr=False)
class Cluster:
    """All tasks of a step with their jobs, indices and addresses, and which of them this one is.

    Outside Slurm it is empty: false, without tasks, and `task` is None.

    Attributes:
        step: the variables, as changed by arguments of the resolver.
        layout: where every rank runs; without nodes and ranks for an empty cluster.
        roles: the ranks of each job, ``roles[job][index]``.
        ports: the ports of the step's tasks; none for an empty cluster.
        hosts: by node, the host to connect to.
        addresses: the addresses of each job, ``addresses[job][index]``.
        gpu_decision: the GPUs of this task, and the reason.
        options: the arguments of `resolve`; ignored when clusters are compared.
    """

    step: SlurmStep = field(default_factory=SlurmStep)
    layout: Layout = Layout(
        nodes=(),
        node_of=(),
        local_rank_of=(),
        distribution="",
        source="",
    )
    roles: Roles = field(default_factory=dict)
    ports: Ports = Ports(by_local_rank=(), source="", service_port=0)
    hosts: Hosts = field(default_factory=dict)
    addresses: Mapping[str, Sequence[str]] = field(default_factory=dict)
    gpu_decision: TaskGpus = TaskGpus()
    options: ClusterOptions = field(default=ClusterOptions(), compare=False)

    def __bool__(self) -> bool:
        """Whether there are tasks; an empty cluster is false."""
        return bool(self.roles)

    @functools.cached_property
    def tasks(self) -> tuple[Task, ...]:
        """Every task of the step, ``tasks[rank]``.

        It is made at the first use: TensorFlow needs only the addresses, and a step may be large.
        """
        tasks = [
            self._task(job, index)
            for job, ranks in self.roles.items()
            for index in range(len(ranks))
        ]
        return tuple(sorted(tasks, key=operator.attrgetter("rank")))

    @functools.cached_property
    def task(self) -> Task | None:
        """The task of this process; None for an empty cluster."""
        for job, ranks in self.roles.items():
            if self.step.rank in ranks:
                return self._task(job, ranks.index(self.step.rank))
        return None

    def _task(self, job: str, index: int) -> Task:
        """Returns a task."""
        rank = self.roles[job][index]
        return Task(
            rank=rank,
            node=self.layout.nodes[self.layout.node_of[rank]],
            local_rank=self.layout.local_rank_of[rank],
            job=job,
            index=index,
            address=self.addresses[job][index],
        )

    @functools.cached_property
    def service(self) -> ServiceAddress | None:
        """The address of the step's coordination service; None without `task`."""
        task = self.task
        if not task:
            return None
        # Slurm's list of nodes decides which task serves, unless other names replace it.
        nodes = self.step.nodes if self.step.node_name else None
        return find_service(
            self.step,
            self.options,
            self.hosts,
            port=self.ports.service_port,
            num_tasks=self.num_tasks,
            first_node=(nodes or self.layout.nodes)[0],
            place=(task.node, task.local_rank),
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

    def jobs(self) -> dict[str, list[str]]:
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
        if not self:
            return {}
        config: dict[str, Any] = {"cluster": self.jobs()}
        if self.task:
            config["task"] = {"type": self.task.job, "index": self.task.index}
        return config

    def variables(self, contract: Contract) -> dict[str, str]:
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
        own = self.task
        if not own:
            return {}
        if contract == "tensorflow":
            return {"TF_CONFIG": json.dumps(self.tf_config())}
        node = self.layout.node_of[own.rank]
        # A program of PyTorch uses the GPU with this number. Slurm may show it fewer than the node
        # has.
        shown = self.gpu_decision.visible_before or self.tasks
        values = {
            **placeholders(self),
            "node_number": node,
            "tasks_on_node": len(self.layout.ranks_on(node)),
            "gpu": own.local_rank % len(shown),
            "gpus": ",".join(numbered(self.gpus or ())),
        }
        texts = {name: text.format(**values) for name, text in TEMPLATES[contract].items()}
        return {name: text for name, text in texts.items() if text}

    def to_dict(self) -> dict[str, Any]:
        """Returns the cluster as plain values, as ``slurm-resolver show --json`` prints them."""
        own = self.task
        this_task = None
        if own:
            this_task = {
                "rank": own.rank,
                "job": own.job,
                "index": own.index,
                "gpus": None if self.gpus is None else list(self.gpus),
                "gpus_source": self.gpu_decision.source,
            }
        return {
            "job_id": self.step.job_id,
            "step_id": self.step.step_id,
            "distribution": self.layout.distribution or None,
            "layout_source": self.layout.source or None,
            "ports_source": self.ports.source or None,
            "self": this_task,
            "tasks": [{**vars(task)} for task in self.tasks],
        }

    def __repr__(self) -> str:
        """Returns a short text for logs."""
        return f"<Cluster of step {self.step.name}: {describe_own_task(self)}>"

    def __str__(self) -> str:
        """Returns the cluster as `print` shows it: a line per task, of 100 tasks at most."""
        return describe_cluster(self, most_tasks=100)


def placeholders(cluster: Cluster) -> dict[str, str]:
    """Returns the value of each {name} in a program's arguments and variables.

    Lists are separated by commas, in the order of index or rank. All are "" for an empty cluster.
    """
    addresses = [task.address for task in cluster.tasks]
    values = {name: str(getattr(cluster.task, name, "")) for name in Task.__annotations__}
    values["hosts"] = ",".join(addresses)
    values["num_tasks"] = str(len(addresses) or "")
    values["main_address"] = "".join(addresses[:1])
    for job, name in (("ps", "ps_hosts"), ("worker", "worker_hosts"), ("chief", "chief_host")):
        values[name] = ",".join(cluster.addresses.get(job, ()))
    for prefix in ("", "main_"):
        host, port = _split_address(values[f"{prefix}address"])
        values[f"{prefix}host"] = host
        values[f"{prefix}port"] = port
    return values


def _split_address(address: str) -> tuple[str, str]:
    """Returns the host, an IPv6 address without its brackets, and the port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port


def describe_own_task(cluster: Cluster) -> str:
    """Returns one line: ``rank 1 of 4 is worker 0 on n9, port 23001, GPUs 0,1``."""
    own = cluster.task
    if not own:
        return _NO_CLUSTER
    port = _split_address(own.address)[1]
    return (
        f"rank {own.rank} of {cluster.num_tasks} is {own.job} {own.index} on {own.node}, "
        f"port {port}, GPUs {describe_gpus(cluster)}"
    )


def describe_cluster(
    cluster: Cluster, most_tasks: int | None = None, gpus: Sequence[str] = ()
) -> str:
    """Returns the whole cluster, a line per task, and the reason for this task's GPUs.

    Args:
        cluster: any; for an empty one the text says that this process trains alone.
        most_tasks: of a larger cluster only so many tasks are shown, and those of this task's node;
            None shows all.
        gpus: the GPUs of all tasks by rank, as `describe_gpus`; () if only its own are known.
    """
    if not cluster:
        return _NO_CLUSTER
    layout = cluster.layout
    rows = _rows_of_tasks(cluster, most_tasks, gpus)
    left_out = cluster.num_tasks + 1 - len(rows)
    if not gpus:
        rows = [[*row[:4], row[5]] for row in rows]
    title = (
        f"job step {cluster.step.name}: {counted(cluster.num_tasks, 'task')} on "
        f"{counted(len(layout.nodes), 'node')}, {layout.distribution} distribution "
        f"(from {layout.source}), ports from {cluster.ports.source}"
    )
    lines = [
        title,
        "jobs: " + ", ".join(f"{job} {len(ranks)}" for job, ranks in sorted(cluster.roles.items())),
        *aligned(rows, numbers=(1, 2)),
    ]
    if left_out:
        lines.append(f"… and {counted(left_out, 'more task')}: `slurm-resolver show` prints all")
    lines.append(f"GPUs of this task: {describe_gpus(cluster)} ({cluster.gpu_decision.source})")
    return "\n".join(lines)


def _rows_of_tasks(
    cluster: Cluster, most_tasks: int | None, gpus: Sequence[str]
) -> list[list[str]]:
    """Returns the headings, and a row for each task that is shown: see `describe_cluster`."""
    own = cluster.task
    rows = [["node", "rank", "local", "task", "GPUs", "address"]]
    node = ""  # of the row before
    # The tasks of each node, one node after another.
    for task in sorted(cluster.tasks, key=lambda task: cluster.layout.node_of[task.rank]):
        is_near = own is not None and own.node == task.node
        if most_tasks is None or len(rows) <= most_tasks or is_near:
            rows.append(
                [
                    task.node if task.node != node else "",
                    str(task.rank),
                    str(task.local_rank),
                    f"{task.job} {task.index}",
                    gpus[task.rank] if gpus else "",
                    task.address + ("  (this task)" if task == own else ""),
                ]
            )
            node = task.node
    return rows


def describe_gpus(cluster: Cluster) -> str:
    """Returns the GPUs of this task, such as "0,1", "none" or "unknown"."""
    return "unknown" if cluster.gpus is None else ",".join(cluster.gpus) or "none"
