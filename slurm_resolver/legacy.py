"""`tf_config_from_slurm`, the helper of 2017 that many training scripts still carry a copy of."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from slurm_resolver.cluster import resolve
from slurm_resolver.environment import Environ
from slurm_resolver.errors import JobsError


def tf_config_from_slurm(
    ps_number: int, port_number: int = 2222, *, environ: Optional[Environ] = None
) -> Tuple[Dict[str, List[str]], str, int]:
    """Returns ``(cluster, job name, task index)`` for ``tf.train.ClusterSpec`` and ``Server``.

    One task a node, all on `port_number`; the first `ps_number` nodes are parameter servers, the
    others workers. The cluster is a dict from job name to addresses ``node:port``.

    Raises:
        JobsError: where `ps_number` is no number of nodes of this step, or a node has more than
            one task.
        Others as `slurm_resolver.resolve`, which serves steps of any form.
    """
    if isinstance(ps_number, bool) or not isinstance(ps_number, int) or ps_number < 0:
        raise JobsError(f"ps_number={ps_number!r}: expected a whole number of nodes, 0 or more.")
    cluster = resolve(
        {"ps": ps_number, "worker": -1}, port_base=port_number, placement="rank", environ=environ
    )
    crowded = next((task for task in cluster.tasks if task.local_rank), None)
    if crowded is not None:
        raise JobsError(
            f"node {crowded.node} has more than one task (rank {crowded.rank} is its second), but "
            "tf_config_from_slurm is for one task a node. Start with srun --ntasks-per-node=1, or "
            "use SlurmClusterResolver."
        )
    assert cluster.task is not None  # resolve() with jobs has a task, or raises
    return cluster.jobs(), cluster.task.job, cluster.task.index
