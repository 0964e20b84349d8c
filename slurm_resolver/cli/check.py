"""`slurm-resolver check`: the preflight of a step, printed once as a grid."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from typing import Any, Dict, List

from slurm_resolver.cli.options import add_cluster_options, cluster_keywords
from slurm_resolver.cluster.cluster import resolve
from slurm_resolver.cluster.node_address import host_for
from slurm_resolver.errors import RendezvousError
from slurm_resolver.slurm.step import SlurmStep

DESCRIPTION = """\
Checks what would keep TensorFlow from starting, before it starts: whether all tasks of the step
are there and agree, every name resolves, every port is free and can be reached, no GPU is shared,
the versions are the same. One task prints the results. Without srun it checks what one machine can
tell."""

EPILOG = """\
checks: presence, layout, agreement, names, ports, reach, speed, gpus, tensorflow, keras, proxies,
clocks, and what decides whether a job can be interrupted and go on: requeue, preemption, signal,
log; outside a step names, tensorflow, keras, proxies, gpus, requeue, preemption, step.

exit status: 0 when no check failed (warnings do not count), 1 when one did, 2 when usage or
environment are wrong; the same in every task.

examples:
  srun slurm-resolver check --jobs ps=1,worker=-1
  slurm-resolver check"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    add_cluster_options(parser)
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="to wait for all tasks (60)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace) -> int:
    """Runs the checks, prints them in one task, and returns 0 or 1."""
    # asyncio, and what it needs, take their time to import
    from slurm_resolver.preflight import step_checks as preflight

    step = SlurmStep.read(os.environ)
    printing = True
    if step.place == "step":
        keywords = cluster_keywords(args)
        cluster = resolve(args.jobs, **keywords)
        assert cluster.task is not None
        host_of = functools.partial(host_for, node_address=args.node_address)
        printing = (cluster.task.node, cluster.task.local_rank) == (step.require("nodes")[0], 0)
        try:
            results = preflight.check_step(cluster, step, args.timeout, args.port_base, host_of)
        except RendezvousError as error:
            results = [preflight.Result("presence", preflight.FAILED, str(error))]
            # Who could not reach the meeting point knows what nobody else does.
            printing = printing or not error.shared
    else:
        results = preflight.check_here()
    failed = any(result.status == preflight.FAILED for result in results)
    if printing and args.json:
        checks: List[Dict[str, str]] = [result._asdict() for result in results]
        print(json.dumps({"ok": not failed, "checks": checks}))
    elif printing:
        _print_grid(results)
    return int(failed)


def _print_grid(results: Any) -> None:
    if not sys.stdout.isatty():
        width = max(len(result.id) for result in results)
        for result in results:
            print(f"{result.id:{width}}  {result.status:7}  {result.detail}")
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}
    table = Table("check", "", "", box=SIMPLE_HEAD, pad_edge=False)
    for result in results:
        table.add_row(result.id, Text(result.status, colours[result.status]), result.detail)
    Console(highlight=False, markup=False).print(table)
