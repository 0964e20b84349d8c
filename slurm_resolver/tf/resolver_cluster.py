"""The cluster and the Slurm step of a strategy's resolver, which may be of another class."""

from __future__ import annotations

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.slurm.step_variables import SlurmStep


def cluster_of(resolver: object) -> Cluster | None:
    """Returns the cluster of a `SlurmClusterResolver`; None of another class."""
    cluster = getattr(resolver, "cluster", None)
    return cluster if isinstance(cluster, Cluster) else None


def slurm_step_of(resolver: object) -> SlurmStep:
    """Returns the step whose cluster a resolver has resolved; of another class, this task's."""
    cluster = cluster_of(resolver)
    return cluster.step if cluster else SlurmStep.read()
