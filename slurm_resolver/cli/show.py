"""`slurm-resolver show`: the cluster of this step, or of a step that options describe."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import List, Optional, Tuple

from slurm_resolver.cli.cluster_picture import Row, address_without_node, picture_rows
from slurm_resolver.cli.options import add_cluster_options, cluster_options
from slurm_resolver.cluster.cluster import (
    Cluster,
    describe_cluster,
    describe_size,
    device_list,
    title,
)
from slurm_resolver.cluster.gpus import JOB_WITHOUT_GPUS
from slurm_resolver.cluster.jobs import job_counts
from slurm_resolver.cluster.layout import layout_from_environment
from slurm_resolver.cluster.resolve import build_cluster, resolve_step
from slurm_resolver.cluster.task_gpus import TaskGpus
from slurm_resolver.cluster.tasks import Task, count_jobs
from slurm_resolver.errors import LaunchError, NotInStepError
from slurm_resolver.preflight.lonely_step import advise_on_lonely_step
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.wording import counted

DESCRIPTION = """\
Shows the cluster that SlurmClusterResolver makes of the Slurm step in which this command runs: each
task's rank, node, job, index and address. The task of rank 0 prints it, JSON every task, each its
own. Outside a step, options describe one.

On a terminal it is a picture in colours, node by node, in which neighbouring nodes with the same
tasks share a line; in a file or a pipe every task has its own line."""

EPILOG = """\
exit status: 0; 2 when usage or environment are wrong.

examples:
  srun -N2 --ntasks-per-node=2 slurm-resolver show --jobs ps=1,worker=-1
  srun --label --ntasks-per-node=2 --gpus-per-node=2 slurm-resolver show --each
  slurm-resolver show --nodelist 'n[1-4]' --tasks-per-node 2 --distribution cyclic --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    add_cluster_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--all", action="store_true", help="on a terminal, give every node its own line"
    )
    printing = parser.add_mutually_exclusive_group()
    printing.add_argument(
        "--once",
        action="store_true",
        help="in a step, let only the task of rank 0 print: needed with --json alone",
    )
    printing.add_argument(
        "--each",
        action="store_true",
        help="in a step, let every task print, each with the GPUs of its node (default for --json)",
    )
    step = parser.add_argument_group("a step to plan, outside Slurm")
    step.add_argument("--nodelist", metavar="LIST", help="a host list, such as n[1-4]")
    step.add_argument(
        "--tasks-per-node",
        metavar="COUNTS",
        help="one number for all nodes, or one for each: 2(x3),1 (default: 1)",
    )
    step.add_argument(
        "--distribution",
        metavar="NAME",
        help="block (the default), cyclic or plane=N",
    )


def main(args: argparse.Namespace) -> int:
    """Prints the cluster; always returns 0."""
    options = cluster_options(args)
    step = SlurmStep.read()
    if args.nodelist is not None:
        step = _planned_step(args)
        tasks = sum(step.tasks_per_node or ())
        counts = job_counts(args.jobs, tasks, _OPTIONS_MAKE, _ASK_FOR_MORE)
        cluster = build_cluster(step, layout_from_environment(step, "options"), counts, options)
    elif args.tasks_per_node is not None or args.distribution is not None:
        raise NotInStepError("--tasks-per-node and --distribution describe the nodes of --nodelist")
    elif step.place == "none" and not step.is_launched:
        raise NotInStepError(
            "there is no Slurm here. Start this command with srun or with `slurm-resolver run`, or "
            "describe a step: slurm-resolver show --nodelist 'n[1-4]' --tasks-per-node 2"
        )
    else:
        cluster = resolve_step(step, options)
        if not cluster.tasks:
            raise NotInStepError("this process trains alone: there is no cluster to show")
    once = args.once or not (args.json or args.each)
    if once and cluster.task is not None and cluster.task.rank != 0:
        return 0
    advice = advise_on_lonely_step(step)
    if advice:
        print(f"slurm-resolver show: {advice}", file=sys.stderr)
    if args.json:
        print(json.dumps(cluster.to_dict()))
    elif sys.stdout.isatty():
        _print_picture(cluster, args.all)
    else:
        print(describe_cluster(cluster))
    return 0


_OPTIONS_MAKE = "--nodelist and --tasks-per-node make {tasks}"
_ASK_FOR_MORE = "describe {needed}"


def _planned_step(args: argparse.Namespace) -> SlurmStep:
    """Returns the step that the options describe.

    Raises:
        LaunchError, UnreadableValueError: for an option that cannot be used, which they name.
    """
    nodes = SlurmStep.nodes.as_option(
        "--nodelist", "Quote it, as the shell would expand its brackets"
    ).read({"--nodelist": args.nodelist})
    assert nodes is not None
    each: str = args.tasks_per_node or "1"
    counts = SlurmStep.tasks_per_node.as_option(
        "--tasks-per-node", "Give one number for all nodes, or one for each"
    ).read({"--tasks-per-node": f"{each}(x{len(nodes)})" if re.fullmatch("[0-9]+", each) else each})
    if counts is None or len(counts) != len(nodes):
        raise LaunchError(
            f"--tasks-per-node {each!r}: expected one number, or one for each of the "
            f"{counted(len(nodes), 'node')} of --nodelist, as 2(x3),1"
        )
    # further fields place tasks within a node
    name, _, size = re.split("[:,]", args.distribution or "block")[0].partition("=")
    if name not in ("block", "cyclic", "plane") or (name == "plane") != bool(size):
        raise LaunchError(
            f"--distribution {args.distribution!r}: expected block, cyclic or plane=N; an "
            "arbitrary one only its own step can show: srun … slurm-resolver show"
        )
    plane_size = None
    if size:
        plane_size = SlurmStep.plane_size.as_option(
            "--distribution plane", "Write plane=N, with N tasks at a time on a node"
        ).read({"--distribution plane": size})
    return SlurmStep(nodes=nodes, tasks_per_node=counts, distribution=name, plane_size=plane_size)


_PICTURE_HEADINGS = ("node", "rank, task, port")
_COLOURS = {
    "chief": "magenta",
    "worker": "green",
    "ps": "cyan",
    "evaluator": "yellow",
    "dispatcher": "red",
    "data_worker": "bright_yellow",
}
_OTHER_COLOUR = "blue"  # of jobs with names of their own
_MOST_TEXTS = 1000  # rich takes a millisecond for each


def _colour(job: str) -> str:
    return _COLOURS.get(job, _OTHER_COLOUR)


def _print_picture(cluster: Cluster, every_node: bool) -> None:
    """Prints the picture, or the plain text where the picture would be too large."""
    single_nodes = {task.node for task in cluster.tasks if task.job in ("chief", "evaluator")}
    if cluster.task is not None:
        single_nodes.add(cluster.task.node)
    if every_node:
        single_nodes.update(task.node for task in cluster.tasks)
    rows = picture_rows(cluster.tasks, single_nodes)
    if sum(len(row.tasks()) if len(row.nodes) == 1 else 1 for row in rows) > _MOST_TEXTS:
        print(describe_cluster(cluster))
        return
    # imported only for a terminal, as rich takes longer than all the rest of this command
    from rich.columns import Columns
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    header = Table.grid(padding=(0, 2))
    header.add_row("tasks", describe_size(cluster, sum(len(row.nodes) for row in rows)))
    jobs = [(f"{job} {number}  ", _colour(job)) for job, number in count_jobs(cluster.tasks)]
    header.add_row("jobs", Text.assemble(*jobs))
    header.add_row("layout", f"from {cluster.layout_source}")
    header.add_row("ports", f"from {cluster.ports_source}")
    if cluster.gpu_decision is not None:
        source = cluster.gpu_decision.source
        header.add_row("GPUs", source if source == JOB_WITHOUT_GPUS else f"from {source}")
    picture = Table.grid(padding=(0, 2))
    picture.add_row(*(Text(heading, "dim") for heading in _PICTURE_HEADINGS))
    gpus = cluster.gpus_on_node()
    for row in rows:
        if len(row.nodes) > 1:
            texts = _texts_of_nodes(row)
        else:
            texts = [
                _text_of_task(task, gpus.get(task.rank), task == cluster.task)
                for task in row.tasks()
            ]
        columns = Columns([Text.assemble(*text) for text in texts], padding=(0, 2))
        picture.add_row(row.host_list(), columns)
    console = Console(highlight=False, markup=False)
    console.print(Panel(header, title=title(cluster), title_align="left", expand=False))
    console.print(picture)


_StyledText = List[Tuple[str, str]]  # parts of a text and their styles


def _text_of_task(task: Task, gpus: Optional[TaskGpus], this_task: bool) -> _StyledText:
    colour = _colour(task.job)
    address = address_without_node(task.address, task.node)
    text = [(f"{task.rank} ", "dim"), (f"{task.job} {task.index}", colour), (f" {address}", "")]
    if gpus is not None:
        text.append((f" gpu {device_list(gpus)}", "bold"))
    if this_task:
        text.append((" (this task)", "reverse"))
    return text


def _texts_of_nodes(row: Row) -> List[_StyledText]:
    """Returns what a row of several nodes shows: their ranks, and a text for each job."""
    texts: List[_StyledText] = [
        [(f"{counted(len(row.nodes), 'node')}, ranks {row.ranks()}", "dim")]
    ]
    for job, number in count_jobs(row.tasks_of_first_node):
        indices = f"{job} {row.indices(job)}"
        texts.append(
            [
                (indices, _colour(job)),
                (f" {row.ports(job)}, {number} a node", ""),
            ]
        )
    return texts
