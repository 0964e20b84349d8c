"""`slurm-resolver show`: the cluster as this task sees it, or as options describe it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import List, Optional, Tuple

from slurm_resolver.cli.options import add_cluster_options, cluster_keywords
from slurm_resolver.cluster import Cluster, build_cluster, resolve
from slurm_resolver.environment import SlurmStep
from slurm_resolver.errors import NotInStepError
from slurm_resolver.layout import lay_out

DESCRIPTION = """\
Shows the cluster that SlurmClusterResolver makes of the Slurm step this command runs in: each
task's rank, node, job, index and address. Options describe a step where there is none."""

EPILOG = """\
examples:
  srun -N2 --ntasks-per-node=2 slurm-resolver show --jobs ps=1,worker=-1
  slurm-resolver show --nodelist 'n[1-4]' --tasks-per-node 2 --distribution cyclic --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    add_cluster_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    step = parser.add_argument_group("a step to plan, outside Slurm")
    step.add_argument("--nodelist", metavar="LIST", help="a host list, such as n[1-4]")
    step.add_argument(
        "--tasks-per-node",
        metavar="COUNTS",
        help="one count for all nodes, or one each: 2(x3),1 (default: 1)",
    )
    step.add_argument(
        "--distribution",
        metavar="NAME",
        help="block (the default), cyclic or plane=N",
    )


def main(args: argparse.Namespace) -> int:
    """Prints the cluster; always returns 0."""
    keywords = cluster_keywords(args)
    if args.nodelist is not None:
        keywords.pop("layout")  # there is nobody to meet
        step = _planned_step(args)
        cluster = build_cluster(step, lay_out(step, "options"), args.jobs, **keywords)
    elif args.tasks_per_node is not None or args.distribution is not None:
        raise NotInStepError("--tasks-per-node and --distribution describe the nodes of --nodelist")
    elif SlurmStep.read().place == "none":
        raise NotInStepError(
            "there is no Slurm here. Start this command with srun or with `slurm-resolver run`, or "
            "describe a step: slurm-resolver show --nodelist 'n[1-4]' --tasks-per-node 2"
        )
    else:
        cluster = resolve(args.jobs, **keywords)
    if args.json:
        print(json.dumps(cluster.to_dict()))
    else:
        _print_table(cluster)
    return 0


def _planned_step(args: argparse.Namespace) -> SlurmStep:
    """The options as the variables of a step, so that they are read by the same rules."""
    variables = {"SLURM_STEP_NODELIST": args.nodelist}
    distribution, _, plane_size = (args.distribution or "block").partition("=")
    variables["SLURM_DISTRIBUTION"] = distribution
    if plane_size:
        variables["SLURM_DIST_PLANESIZE"] = plane_size
    counts: str = args.tasks_per_node or "1"
    nodes = SlurmStep.read(variables).require("nodes")
    variables["SLURM_STEP_TASKS_PER_NODE"] = (
        f"{counts}(x{len(nodes)})" if counts.isdigit() else counts
    )
    return SlurmStep.read(variables)


def _print_table(cluster: Cluster) -> None:
    position = {node: i for i, node in enumerate(dict.fromkeys(t.node for t in cluster.tasks))}
    print(
        f"job step {_text(cluster.job_id)}.{_text(cluster.step_id)}: {len(cluster.tasks)} tasks "
        f"on {len(position)} nodes, {cluster.distribution} distribution (from "
        f"{cluster.layout_source}), ports from {cluster.ports_source}"
    )
    rows = []
    previous = None
    for task in sorted(cluster.tasks, key=lambda task: position[task.node]):
        own = cluster.task is not None and task.rank == cluster.task.rank
        rows.append(
            (
                "" if task.node == previous else task.node,
                str(task.rank),
                str(task.local_rank),
                f"{task.job} {task.index}",
                task.address + ("  (this task)" if own else ""),
            )
        )
        previous = task.node
    if sys.stdout.isatty() and len(rows) <= _MOST_COLOURED_ROWS:
        _print_coloured(rows)
    else:
        _print_plain(rows)
    if cluster.task is not None:
        print(f"GPUs of the tasks on {cluster.task.node}:")
        for rank, gpus in sorted(cluster.node_gpus().items()):
            devices = "unknown" if gpus.devices is None else ",".join(gpus.devices) or "none"
            mark = "  (this task)" if rank == cluster.task.rank else ""
            print(f"  rank {rank}: {devices} ({gpus.source}){mark}")


_Row = Tuple[str, str, str, str, str]
_HEADINGS: _Row = ("node", "rank", "local", "task", "address")
_NUMBERS = ("rank", "local")
_MOST_COLOURED_ROWS = 1000  # rich takes a millisecond a row


def _print_plain(rows: List[_Row]) -> None:
    table = [_HEADINGS, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(_HEADINGS))]
    for row in table:
        cells = [
            cell.rjust(width) if heading in _NUMBERS else cell.ljust(width)
            for cell, heading, width in zip(row, _HEADINGS, widths)
        ]
        print("  ".join(cells).rstrip())


def _print_coloured(rows: List[_Row]) -> None:
    # rich takes longer to import than all the rest of this command: only a terminal pays for it
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading in _NUMBERS else "left")
    colours = {"chief": "magenta", "worker": "green", "ps": "cyan", "evaluator": "yellow"}
    for row in rows:
        table.add_row(*row, style=colours.get(row[3].split()[0]))
    Console(highlight=False, markup=False).print(table)


def _text(value: Optional[str]) -> str:
    return "?" if value is None else value
