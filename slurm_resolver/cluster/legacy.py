"""`tf_config_from_slurm`, a function of 2017 that many training scripts still contain."""

from __future__ import annotations

from slurm_resolver.cluster.addresses import JobAddresses
from slurm_resolver.cluster.resolve import resolve
from slurm_resolver.errors import NotInStepError
from slurm_resolver.slurm.variable_types import Environ


def tf_config_from_slurm(
    ps_number: int, port_number: int = 2222, *, environ: Environ | None = None
) -> tuple[JobAddresses, str, int]:
    """Returns ``(cluster, job name, task index)`` for ``tf.train.ClusterSpec`` and ``Server``.

    A node's second task is a parameter server only if there are more parameter servers than nodes.
    The cluster is a dict from job name to addresses ``node:port``.

    Args:
        ps_number: the number of parameter servers, on the first nodes; the rest are workers.
        port_number: the first port on each node; the task with local rank i uses `port_number` + i.
        environ: the variables to read, by default `os.environ`.

    Raises:
        JobsError: if the step does not have `ps_number` tasks.
        SlurmResolverError: as in `slurm_resolver.resolve`.
    """
    cluster = resolve({"ps": ps_number, "worker": -1}, port_base=port_number, environ=environ)
    if not cluster.task:
        raise NotInStepError(
            "SLURM_RESOLVER=off: this process has no cluster. Unset the variable, and start the "
            "program with srun."
        )
    return cluster.jobs(), cluster.task.job, cluster.task.index
