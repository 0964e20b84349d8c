"""`Cluster`: the resolved step, and how it is shown to programs and to people."""

from __future__ import annotations

from typing import Any

from slurm_resolver.cluster.cluster_text import describe_cluster, describe_own_task
from slurm_resolver.cluster.frameworks import Contract, framework_variables
from slurm_resolver.cluster.resolved_step import ResolvedStep
from slurm_resolver.slurm.variable_types import Exports


class Cluster(ResolvedStep):
    """All tasks of a step with their jobs, indices and addresses, and which of them this one is.

    Outside Slurm it is empty: false, without tasks, and `task` is None.

    Attributes:
        step: the variables, as changed by arguments of the resolver.
        layout: where every rank runs.
        roles: the ranks of each job, ``roles[job][index]``.
        ports: the ports of the step's tasks.
        hosts: by node, the host to connect to.
        addresses: the addresses of each job, ``addresses[job][index]``.
        service: the address of the step's coordination service; None for an empty cluster.
        gpu_decision: the GPUs of this task, and the reason.
        options: the arguments of `resolve`; ignored when clusters are compared.
    """

    def variables(self, contract: Contract) -> Exports:
        """Returns the variables that describe the cluster to a framework's programs.

        Args:
            contract: "tensorflow" (TF_CONFIG), "keras-distribution", "torch" or "jax".

        Returns:
            the variables to set before this task's program starts; {} for an empty cluster.

        Raises:
            ValueError: for another contract.
        """
        return framework_variables(self, contract)

    def to_dict(self) -> dict[str, Any]:
        """Returns the cluster as plain values, as ``slurm-resolver show --json`` prints them."""
        task = self.task
        this_task = None
        if task:
            this_task = {
                "rank": task.rank,
                "job": task.job,
                "index": task.index,
                "gpus": None if self.gpus is None else list(self.gpus),
                "gpus_source": self.gpu_decision.source,
            }
        return {
            "job_id": self.step.job_id,
            "step_id": self.step.step_id,
            "distribution": self.layout.distribution if self else None,
            "layout_source": self.layout.source if self else None,
            "ports_source": self.ports.source if self else None,
            "self": this_task,
            "tasks": [{**vars(task)} for task in self.tasks],
        }

    def __repr__(self) -> str:
        """Returns a short text for logs."""
        return f"<Cluster of step {self.step.name}: {describe_own_task(self)}>"

    def __str__(self) -> str:
        """Returns the cluster as `print` shows it: a line per task, of 100 tasks at most."""
        return describe_cluster(self, most_tasks=100)
