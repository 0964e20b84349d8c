"""`tf_config_from_slurm`, the helper of 2017 that many training scripts still carry a copy of."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from slurm_resolver.cluster.resolve import resolve
from slurm_resolver.errors import JobsError
from slurm_resolver.slurm.variable import Environ


def tf_config_from_slurm(
    ps_number: int, port_number: int = 2222, *, environ: Optional[Environ] = None
) -> Tuple[Dict[str, List[str]], str, int]:
    """Returns ``(cluster, job name, task index)`` for ``tf.train.ClusterSpec`` and ``Server``.

    The first `ps_number` nodes are parameter servers, the others workers, all on `port_number`.
    Where a node has more than one task, only the first task of such a node is a parameter server,
    and task i of each node takes the port `port_number` + i. The cluster is a dict from job name
    to addresses ``node:port``.

    Raises:
        JobsError: where `ps_number` is no number of tasks of this step.
        Others as `slurm_resolver.resolve`.
    """
    if isinstance(ps_number, bool) or not isinstance(ps_number, int) or ps_number < 0:
        raise JobsError(f"ps_number={ps_number!r}: expected a whole number of nodes, 0 or more.")
    cluster = resolve({"ps": ps_number, "worker": -1}, port_base=port_number, environ=environ)
    assert cluster.task is not None  # resolve() with jobs has a task, or raises
    return cluster.jobs(), cluster.task.job, cluster.task.index
