"""The resolved cluster: one value with everything that a task knows about its step."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.cluster.contracts import Contract, variables_of
from slurm_resolver.cluster.data_service import DATA_JOBS, address_of_dispatcher
from slurm_resolver.cluster.gpu_plan import NodeGpuPlan
from slurm_resolver.cluster.service_address import was_restarted
from slurm_resolver.cluster.task_gpus import TaskGpus
from slurm_resolver.cluster.tasks import Task, addresses_by_job
from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.slurm.step import SlurmStep

# TensorFlow would wait for the tf.distribute.Server of each task in the spec, and these have none.
JOBS_OUTSIDE_SPEC = ("evaluator", *DATA_JOBS)


class Cluster(NamedTuple):
    """All tasks of a step with their jobs, indices and addresses, and which of them this one is.

    Outside Slurm it is empty: no tasks, and `task` is None.

    Attributes:
        tasks: every task of the step, ``tasks[rank]``.
        task: the task of this process; None where it has none, as for a step that is only planned.
        gpu_decision: the GPUs of this task, and the reason; None without `task`.
        node_gpus: the GPUs of all tasks on the node of this task; None without `task`.
        distribution: Slurm's distribution, which placed the tasks on the nodes.
        layout_source: what the layout was taken from.
        ports_source: what the ports were taken from.
        step: the variables that the cluster was made from; arguments and overridden methods of the
            resolver have changed them.
        service: the address of the step's coordination service; None without `task`.
    """

    tasks: Sequence[Task] = ()
    task: Optional[Task] = None
    gpu_decision: Optional[TaskGpus] = None
    node_gpus: Optional[NodeGpuPlan] = None
    distribution: Optional[str] = None
    layout_source: Optional[str] = None
    ports_source: Optional[str] = None
    step: SlurmStep = SlurmStep()
    service: Optional[ServiceAddress] = None

    def __repr__(self) -> str:
        """Returns a short text for logs: it counts the tasks, which may be many."""
        return (
            f"Cluster(step {self.job_id}.{self.step_id}: {self.tasks!r}, task={self.task!r}, "
            f"gpus={self.gpus!r})"
        )

    def __str__(self) -> str:
        """Returns the cluster as `print` shows it: a line a task, of 100 tasks at most."""
        from slurm_resolver.cluster.as_text import MOST_TASKS, describe_cluster

        return describe_cluster(self, MOST_TASKS)

    def gpus_on_node(self) -> Dict[int, TaskGpus]:
        """Returns by rank the GPUs of all tasks on this task's node; {} without a task."""
        return self.node_gpus.by_rank() if self.node_gpus else {}

    @property
    def was_restarted(self) -> bool:
        """Whether this task's program was started again in its step; the others do not wait."""
        return was_restarted(self.step)

    def name_of(self, rank: int) -> str:
        """Returns how messages name a task: ``worker 3 (rank 3 on n9)``."""
        task = self.tasks[rank]
        return f"{task.job} {task.index} (rank {rank} on {task.node})"

    @property
    def job_id(self) -> Optional[str]:
        """The Slurm job's id; None where it is not set."""
        return self.step.job_id

    @property
    def step_id(self) -> Optional[str]:
        """The step's id within its job; None where it is not set."""
        return self.step.step_id

    @property
    def gpus(self) -> Optional[Tuple[str, ...]]:
        """This task's GPUs as CUDA_VISIBLE_DEVICES names them; () for none.

        None where the environment says nothing about GPUs.
        """
        return self.gpu_decision.devices if self.gpu_decision else None

    def jobs(self) -> Dict[str, List[str]]:
        """Returns the addresses of each job by index, in alphabetical order of the job names.

        The evaluator is not among them, as TensorFlow keeps it outside the cluster, nor are the
        dispatcher and the data workers of a tf.data service.
        """
        return {
            job: addresses
            for job, addresses in addresses_by_job(self.tasks).items()
            if job not in JOBS_OUTSIDE_SPEC
        }

    @property
    def data_service(self) -> Optional[str]:
        """What ``tf.data.experimental.service.distribute`` takes as `service`; None without one.

        Such as ``grpc://n8:23002``, the address of the dispatcher.
        """
        address = address_of_dispatcher(self)
        return None if address is None else f"grpc://{address}"

    def tf_config(self) -> Dict[str, Any]:
        """Returns the content of TF_CONFIG for this task; {} for an empty cluster."""
        if not self.tasks:
            return {}
        config: Dict[str, Any] = {"cluster": self.jobs()}
        if self.task is not None:
            config["task"] = {"type": self.task.job, "index": self.task.index}
        return config

    def variables(self, contract: Contract) -> Dict[str, str]:
        """Returns the variables by which a framework's programs learn of their cluster.

        Args:
            contract: "tensorflow" (TF_CONFIG), "dtensor", "keras-distribution", "keras-tuner",
                "torch" or "jax".

        Returns:
            by name what to set in this task before its program starts; {} for an empty cluster, and
            where the program of a single task needs none.

        Raises:
            ValueError: for another contract.
        """
        return variables_of(self, contract)

    def to_dict(self) -> Dict[str, Any]:
        """Returns the cluster as plain values, as ``slurm-resolver show --json`` prints them."""
        this_task = None
        if self.task is not None:
            this_task = {
                "rank": self.task.rank,
                "job": self.task.job,
                "index": self.task.index,
                "gpus": None if self.gpus is None else list(self.gpus),
                "gpus_source": self.gpu_decision.source if self.gpu_decision else None,
            }
        return {
            "job_id": self.job_id,
            "step_id": self.step_id,
            "distribution": self.distribution,
            "layout_source": self.layout_source,
            "ports_source": self.ports_source,
            "self": this_task,
            "tasks": [task._asdict() for task in self.tasks],
        }
