"""The tasks of a tf.data service: a dispatcher and data workers, beside the tasks that train.

They have the names of TensorFlow's classes (tf.data.experimental.service): a `DispatchServer`, and
`WorkerServer`, called data workers here, as ``worker`` is a job that trains. They have addresses,
as every task, but stand outside ``cluster_spec()``: TensorFlow's strategies refuse their names,
and would wait for their servers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Optional

from slurm_resolver.errors import JobsError

if TYPE_CHECKING:
    from slurm_resolver.cluster.cluster import Cluster

DISPATCHER, DATA_WORKER = "dispatcher", "data_worker"
DATA_JOBS = (DISPATCHER, DATA_WORKER)  # in the order in which they get their ranks


def check_data_jobs(counts: Mapping[str, int], jobs: Mapping[str, Any]) -> None:
    """Checks that a dispatcher, data workers and tasks that train come together.

    Args:
        counts: the tasks by job.
        jobs: the argument, for messages.

    Raises:
        JobsError: where one of them has no tasks, which would leave the others waiting.
    """
    dispatchers, workers = (counts.get(job, 0) for job in DATA_JOBS)
    if not dispatchers and not workers:
        return
    given = f"jobs={dict(jobs)!r}"
    example = "as in {'worker': -1, 'dispatcher': 1, 'data_worker': 2}"
    if not dispatchers:
        raise JobsError(
            f"{given}: a data_worker serves the dispatcher of a tf.data service, and there is "
            f"none; expected 'dispatcher': 1 as well, {example}."
        )
    if not workers:
        raise JobsError(
            f"{given}: the dispatcher of a tf.data service has no data_worker, and those who train "
            f"would wait for data for ever; expected one or more, {example}."
        )
    if not counts.get("chief") and not counts.get("worker"):
        raise JobsError(
            f"{given}: no task is left to train with the data of the dispatcher; expected a chief "
            f"or worker, {example}."
        )


def address_of_dispatcher(cluster: Cluster) -> Optional[str]:
    """Returns host and port of the dispatcher; None where there is none."""
    return next((task.address for task in cluster.tasks if task.job == DISPATCHER), None)
