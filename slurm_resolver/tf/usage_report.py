"""Says at the end of a training where its time went, and what to do about a loss."""

from __future__ import annotations

from slurm_resolver.coordination import TRAIN
from slurm_resolver.coordination.usage import Workers, seconds_of, summarize
from slurm_resolver.log import print_line
from slurm_resolver.tf.resolver_cluster import cluster_of, slurm_step_of

_SECONDS = 10.0  # a shorter training is reported only if it is the first
_is_told = False


def tell_usage(resolver: object, what: str, workers: Workers) -> None:
    """Prints where the time of a training went, unless SLURM_RESOLVER_REPORT is off.

    A program may call `fit` a thousand times: a short one is reported only if it is the first.

    Args:
        resolver: of the training.
        what: what has ended: "fit" or "the loop".
        workers: the report of each worker; if there is none, nothing is printed.
    """
    global _is_told
    lasted = workers and seconds_of(workers) >= _SECONDS
    if slurm_step_of(resolver).usage_report == "off" or (_is_told and not lasted):
        return
    _is_told = True
    cluster = cluster_of(resolver)
    nodes = {task.node for task in cluster.tasks if task.job in TRAIN} if cluster else ()
    for line in summarize(what, workers, len(nodes)):
        print_line(line)
