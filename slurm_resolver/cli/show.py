"""`slurm-resolver show`: the cluster of this step."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Sequence

from slurm_resolver.cli.shared_options import CLUSTER_OPTIONS, values_of
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.resolve import resolve_step
from slurm_resolver.coordination.client import connect
from slurm_resolver.errors import NotInStepError, RendezvousError
from slurm_resolver.log import print_line
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.timeouts import Timeouts

DESCRIPTION = """\
Shows the cluster of this Slurm step: rank, node, job, index, GPUs and address of each task. Rank 0
prints the text; with --json every task prints its view."""

EPILOG = """\
exit status: 0; 1 if the tasks have to meet and do not; 2 if usage or environment is wrong.

examples:
  srun -N2 --ntasks-per-node=2 slurm-resolver show --jobs ps=1,worker=-1"""


OPTIONS = {**CLUSTER_OPTIONS, "--json": "print JSON, in every task"}


def main(args: Namespace) -> int:
    """Prints the cluster; always returns 0."""
    until = time.monotonic() + Timeouts.check
    options = ClusterOptions(**values_of(args, ClusterOptions), until=until)
    cluster = resolve_step(SlurmStep.read(), options)
    if not cluster.task:
        raise NotInStepError(
            "this process trains alone: there is no cluster to show. Start it with srun -N 2 "
            "slurm-resolver show, and without SLURM_RESOLVER=off; without Slurm, with "
            "slurm-resolver run -n 2 -- slurm-resolver show"
        )
    if args.json:
        print(json.dumps(cluster.to_dict()))
        return 0
    # Only the tasks know their GPUs; without any, none are shown.
    gpus: Sequence[str] = ()
    if cluster.service and cluster.step.is_live:
        client = connect(cluster.service, cluster.name_of)
        try:
            left = until - time.monotonic()
            by_rank = client.gather("slurm-resolver show", cluster.gpus_text, left)
            gpus = [*by_rank.values()]
        except RendezvousError as error:  # the cluster is known all the same
            print_line(f"the GPUs of other tasks are unknown: {error}", "slurm-resolver show")
    if cluster.task.rank == 0:
        has_gpus = {*gpus} - {"unknown", "none"}
        print(cluster.text(gpus=gpus if has_gpus else ()))
    return 0
