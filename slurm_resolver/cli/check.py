"""`slurm-resolver check`: the checks before a training, printed once for all tasks."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any, Dict, List

from slurm_resolver.cli.options import add_cluster_options, cluster_options
from slurm_resolver.cluster.jobs import job_counts, refuse_misspelt_jobs
from slurm_resolver.cluster.resolve import resolve_step
from slurm_resolver.errors import SlurmResolverError, find_rendezvous_error
from slurm_resolver.slurm.step import SlurmStep

DESCRIPTION = """\
Checks, before TensorFlow starts, what would keep it from starting: whether all tasks of the step
are there and agree, every name resolves, every port is free and can be reached, no GPU is shared,
and the versions are the same. One task prints the results. Without srun it looks at what can be
seen on this machine, says that no step was checked, and has an exit status of its own."""

EPILOG = """\
checks: presence, layout, agreement, names, ports, reach, secret, cpus, gpus, tensorflow, keras,
proxies, clocks, and those about a job that is interrupted and continued: requeue, preemption,
signal, log; outside a step names, tensorflow, keras, proxies, gpus, requeue, preemption, step.

exit status: 0 when no check failed (warnings do not count), 1 when one did, 2 when usage or
environment are wrong; the same in every task. Without srun it is 3 instead of 0: what can be seen
here is well, but no step was checked.

examples:
  srun slurm-resolver check --jobs ps=1,worker=-1
  slurm-resolver check"""


NOTHING_CHECKED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    add_cluster_options(parser)
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="wait so long in all until every task is there (60)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace) -> int:
    """Runs the checks, prints them in one task, and returns 0, 1 or 3."""
    # imported here, as --help does not need them: they take longer than all the rest
    from slurm_resolver.preflight.result import FAILED, Result
    from slurm_resolver.preflight.step_checks import check_here, check_step

    until = time.monotonic() + args.timeout
    step = SlurmStep.read()
    refuse_misspelt_jobs(args.jobs or {})
    printing = True
    cluster = None
    good = 0
    try:
        if step.is_launched:
            cluster = resolve_step(step, cluster_options(args)._replace(until=until))
        if cluster is not None and cluster.service is not None:
            printing = cluster.service.serves
            results = check_step(cluster, until - time.monotonic())
        else:
            good = NOTHING_CHECKED
            job_counts(args.jobs, sum(abs(count) for count in (args.jobs or {}).values()))
            results = check_here()
    except SlurmResolverError as error:
        cause = find_rendezvous_error(error)
        if cause is None:
            raise
        results = [Result("presence", FAILED, str(error))]
        printing = cause.unreached or step.rank == 0
    failed = any(result.status == FAILED for result in results)
    status = 1 if failed else good
    if printing and args.json:
        checks: List[Dict[str, str]] = [result._asdict() for result in results]
        print(json.dumps({"ok": status == 0, "checks": checks}))
    elif printing:
        _print_grid(results)
    return status


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
