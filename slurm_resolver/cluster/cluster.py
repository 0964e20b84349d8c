"""The resolved cluster: one value that carries all that a task knows of its step."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.cluster.gpus import Gpus, NodeGpus
from slurm_resolver.cluster.tasks import Task, addresses_by_job
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.slurm.step import SlurmStep

# TensorFlow starts no server for the evaluator, and waits for one that is in the spec.
_OUTSIDE_SPEC = ("evaluator",)


class Cluster(NamedTuple):
    """All tasks of a step, by rank, with job, index and address; and what is this task's own.

    Outside Slurm it is empty: no tasks, and `task` is None.

    Attributes:
        tasks: every task of the step, ``tasks[rank]``.
        task: this process's own; None where there is none, as in a plan made from options.
        gpu_decision: the GPUs of this task and why those; None where there is no `task`.
        node_gpus: how the tasks of this task's node share its GPUs; None as above.
        distribution: the one that placed the tasks.
        layout_source, ports_source: where each decision comes from.
        step: the variables that it was made from, as corrected by arguments and overridden methods.
        rendezvous: where the tasks of the step meet; None where there is no `task`.
    """

    tasks: Sequence[Task] = ()
    task: Optional[Task] = None
    gpu_decision: Optional[Gpus] = None
    node_gpus: Optional[NodeGpus] = None
    distribution: Optional[str] = None
    layout_source: Optional[str] = None
    ports_source: Optional[str] = None
    step: SlurmStep = SlurmStep()
    rendezvous: Optional[Rendezvous] = None

    def __repr__(self) -> str:
        """Returns what one wants to see of it in a log; `tasks` may be many."""
        return (
            f"Cluster(step {self.job_id}.{self.step_id}: {self.tasks!r}, task={self.task!r}, "
            f"gpus={self.gpus!r})"
        )

    def gpus_on_node(self) -> Dict[int, Gpus]:
        """Returns by rank the GPUs of all tasks on this task's node; {} without a task."""
        return self.node_gpus.decisions() if self.node_gpus else {}

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

        The evaluator is not among them: TensorFlow keeps it outside the cluster.
        """
        return {
            job: addresses
            for job, addresses in addresses_by_job(self.tasks).items()
            if job not in _OUTSIDE_SPEC
        }

    def tf_config(self) -> Dict[str, Any]:
        """Returns what TF_CONFIG holds for this task, as a dict; {} for an empty cluster."""
        if not self.tasks:
            return {}
        config: Dict[str, Any] = {"cluster": self.jobs()}
        if self.task is not None:
            config["task"] = {"type": self.task.job, "index": self.task.index}
        return config

    def to_dict(self) -> Dict[str, Any]:
        """Returns the cluster as plain values: what ``slurm-resolver show --json`` prints."""
        own = None
        if self.task is not None:
            own = {
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
            "self": own,
            "tasks": [task._asdict() for task in self.tasks],
        }
