"""`slurm-resolver show`: the cluster of this step, or of a step that options describe."""

from __future__ import annotations

import json
import re
from argparse import Namespace

from slurm_resolver.cli.options import (
    OptionAdder,
    add_cluster_options,
    cluster_options,
    number_type,
)
from slurm_resolver.cluster.cluster import describe_cluster, describe_gpus
from slurm_resolver.cluster.jobs import job_counts
from slurm_resolver.cluster.layout import layout_from_environment
from slurm_resolver.cluster.resolve import build_cluster, resolve_step
from slurm_resolver.coordination.client import connect
from slurm_resolver.errors import LaunchError, NotInStepError, RendezvousError
from slurm_resolver.log import print_line
from slurm_resolver.slurm.step import SlurmStep

_SECONDS = 10.0  # for all tasks to come

DESCRIPTION = """\
Shows the cluster of this Slurm step: rank, node, job, index, GPUs and address of each task. Rank 0
prints the text; with --json every task prints its view. Outside a step, options describe one."""

EPILOG = """\
exit status: 0; 2 if usage or environment is wrong.

examples:
  srun -N2 --ntasks-per-node=2 slurm-resolver show --jobs ps=1,worker=-1
  slurm-resolver show --nodelist 'n[1-4]' --tasks-per-node 2 --distribution cyclic --json"""


def add_arguments(add: OptionAdder) -> None:
    """Adds this subcommand's arguments."""
    add_cluster_options(add)
    add("--json", "print JSON, in every task")
    add = OptionAdder(add.parser.add_argument_group("a planned step, outside Slurm"))
    add("--nodelist LIST", "a host list, such as n[1-4]")
    add("--tasks-per-node N", "tasks on each node (1)", type=number_type(1), default=1)
    add("--distribution NAME", "block, cyclic or plane=N (block)", default="block")


def main(args: Namespace) -> int:
    """Prints the cluster; always returns 0."""
    step = SlurmStep.read()
    if args.nodelist is not None:
        nodes = (
            SlurmStep.nodes.parse(
                args.nodelist, "--nodelist", "Quote it: the shell expands brackets"
            )
            or ()
        )
        placed = re.fullmatch(r"(block|cyclic)|plane=([1-9][0-9]{0,5})", args.distribution)
        if not placed:
            raise LaunchError(
                f"--distribution {args.distribution!r}: expected block, cyclic or plane=N. For "
                "another distribution, start the step: srun … slurm-resolver show"
            )
        step = SlurmStep(
            nodes=nodes,
            tasks_per_node=(args.tasks_per_node,) * len(nodes),
            distribution=placed[1] or "plane",
            plane_size=placed[2] and int(placed[2]),
        )
        cluster = build_cluster(
            step,
            layout_from_environment(step, "options"),
            job_counts(
                args.jobs,
                args.tasks_per_node * len(nodes),
                "--nodelist and --tasks-per-node make",
            ),
            cluster_options(args),
        )
    elif step.where == "none" and not step.is_launched:
        raise NotInStepError(
            "this process is not in a Slurm step. Start it with srun -N 2 slurm-resolver show; "
            "without Slurm, with slurm-resolver run -n 2 -- slurm-resolver show; or describe a "
            "step: slurm-resolver show --nodelist 'n[1-4]' --tasks-per-node 2"
        )
    else:
        cluster = resolve_step(step, cluster_options(args))
        if not cluster.tasks:
            raise NotInStepError(
                "this process trains alone: there is no cluster to show. Start it with srun, and "
                "without SLURM_RESOLVER=off"
            )
    if args.json:
        print(json.dumps(cluster.to_dict()))
        return 0
    gpus: list[str] = []
    if cluster.service and cluster.step.is_live:  # only the tasks know their GPUs
        client = connect(cluster.service, cluster.name_of)
        try:
            gpus = client.gather("slurm-resolver show", describe_gpus(cluster), _SECONDS)
        except RendezvousError as error:  # the cluster is known all the same
            print_line(f"the GPUs of other tasks are unknown: {error}", "slurm-resolver show")
        if not {*gpus} - {"unknown", "none"}:
            gpus = []
    if not step.rank:  # None for a planned step
        print(describe_cluster(cluster, gpus=gpus))
    return 0
