"""Which jobs use GPUs, and which GPUs the tasks of a node use."""

from __future__ import annotations

from typing import Collection, Dict, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.cluster.data_service import DATA_JOBS
from slurm_resolver.cluster.gpus import choose_gpus
from slurm_resolver.cluster.job_names import JOB_NAMES
from slurm_resolver.cluster.task_gpus import TaskGpus
from slurm_resolver.errors import JobsError
from slurm_resolver.slurm.step import SlurmStep


class NodeGpuPlan(NamedTuple):
    """What a task knows about the GPUs of all tasks on its node.

    Attributes:
        step: the variables of this task.
        task_gpus: the GPUs of this task.
        ranks: the ranks on the node, ``ranks[local_rank]``.
        gpu_local_ranks: the local ranks of the tasks that use GPUs.
        counts: the last three positional arguments of `choose_gpus`.
        not_counted: see `choose_gpus`.
    """

    step: SlurmStep
    task_gpus: TaskGpus
    ranks: Sequence[int]
    gpu_local_ranks: Sequence[int]
    counts: Tuple[int, Optional[int], Optional[int]]
    not_counted: Collection[int] = ()

    def by_rank(self) -> Dict[int, TaskGpus]:
        """Returns the GPUs of every task on the node, as far as this task can know them."""
        gpus = {}
        for local_rank, rank in enumerate(self.ranks):
            if rank == self.step.rank:
                gpus[rank] = self.task_gpus
            elif local_rank in self.gpu_local_ranks and not self.task_gpus.same_for_all:
                gpus[rank] = TaskGpus(None, "known to the task alone")
            else:
                other = self.step.replace(rank=rank, gpus_applied=None)
                gpus[rank] = choose_gpus(
                    other,
                    local_rank,
                    self.gpu_local_ranks,
                    *self.counts,
                    not_counted=self.not_counted,
                )
        return gpus


def jobs_with_gpus(
    jobs: Collection[str],
    gpu_jobs: Optional[Collection[str]],
    empty_jobs: Collection[str] = (),
) -> Collection[str]:
    """Returns which of the cluster's jobs use GPUs; `empty_jobs` are known, and have no tasks.

    By default all but the parameter servers, and but the chief where there are parameter servers:
    as the coordinator of a ParameterServerStrategy it computes nothing. Nor do the tasks of a
    tf.data service, whose pipelines run on CPUs.

    Raises:
        JobsError: for a name in `gpu_jobs` that is not the name of a job.
    """
    if gpu_jobs is None:
        without = {"ps", *DATA_JOBS, *(["chief"] if "ps" in jobs else [])}
        return set(jobs) - without
    known = dict.fromkeys([*JOB_NAMES, *jobs, *empty_jobs])
    if not set(gpu_jobs) <= set(known) or isinstance(gpu_jobs, str):
        raise JobsError(
            f"gpu_jobs={gpu_jobs!r}: expected a collection of these names: {', '.join(known)}."
        )
    return set(gpu_jobs)
