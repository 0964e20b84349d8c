"""Says at the end of a training where its time went, and what to do about a loss."""

from __future__ import annotations

from typing import Any

from slurm_resolver.coordination.training_with_servers import TRAIN
from slurm_resolver.coordination.usage import Workers, summarize
from slurm_resolver.log import print_line
from slurm_resolver.tf.resolver_cluster import cluster_of, slurm_step_of


def tell_usage(resolver: Any, what: str, workers: Workers) -> None:
    """Prints where the time of a training went, unless SLURM_RESOLVER_REPORT is off.

    Args:
        resolver: of the training.
        what: what has ended: "fit" or "the loop".
        workers: the report of each worker; of none, nothing is printed.
    """
    if slurm_step_of(resolver).usage_report == "off":
        return
    cluster = cluster_of(resolver)
    nodes = {task.node for task in cluster.tasks if task.job in TRAIN} if cluster else ()
    for line in summarize(what, workers, len(nodes)):
        print_line(line)
