"""`slurm-resolver check`: the checks before a training, printed once for all tasks."""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from typing import NoReturn

from slurm_resolver.cli.shared_options import CLUSTER_OPTIONS, values_of
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.resolve import resolve_step
from slurm_resolver.errors import (
    JobsError,
    NotInStepError,
    SlurmResolverError,
    find_rendezvous_error,
)
from slurm_resolver.preflight.result import FAILED, Result
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.timeouts import Timeouts

DESCRIPTION = """\
Checks, before TensorFlow starts, whether it can start: all tasks are present and agree, names
resolve, ports can be reached, no GPU is shared, versions are equal, and no node is slow to read
TensorFlow's files. One task prints each warning and failure, and a summary."""

EPILOG = """\
exit status, the same in every task: 0 if no check failed, 1 if one failed or --collective warns of
what it measured, 2 if usage or environment is wrong. Other warnings do not change it.

examples:
  srun slurm-resolver check --jobs ps=1,worker=-1
  srun slurm-resolver check --collective"""


OPTIONS = {
    **CLUSTER_OPTIONS,
    "--timeout SECONDS": f"wait at most this long, in total, for all tasks ({Timeouts.check:g})",
    "--verbose": "print every check",
    "--collective": "if no check fails, measure a step and an all-reduce in every task",
    "--json": "print JSON",
}


def main(args: Namespace) -> int:
    """Runs the checks, prints them in one task, and returns 0 or 1."""
    # Imported here: --help does not need it, and it takes long.
    from slurm_resolver.preflight.step_checks import check_step

    step = SlurmStep.read()
    if args.collective and "ps" in (args.jobs or {}):
        raise JobsError(
            "--collective with ps in --jobs: it measures MultiWorkerMirroredStrategy, which does "
            "not start in a cluster with parameter servers. Remove ps."
        )
    timeout = Timeouts.check if args.timeout is None else args.timeout
    until = time.monotonic() + timeout
    try:
        options = ClusterOptions(**values_of(args, ClusterOptions), until=until)
        cluster = resolve_step(step, options)
        if not cluster.service:
            raise NotInStepError(
                "no step to check: start this command with srun, like the training, to check all "
                "of its tasks together; on this machine alone, with slurm-resolver run -n 2 -- "
                "slurm-resolver check"
            )
        results = check_step(cluster, until - time.monotonic())
        is_printing = cluster.service.hosts_service
    except SlurmResolverError as error:
        cause = find_rendezvous_error(error)
        if not cause:
            raise
        results = [Result("presence", FAILED, str(error))]
        is_printing = cause.unreached or step.rank == 0
    counts = Counter(result.status for result in results)
    if is_printing:
        _print(results, counts, args)
    if args.collective and not counts[FAILED]:
        _measure(args)
    return int(counts[FAILED] > 0)


def _print(results: Sequence[Result], counts: Counter[str], args: Namespace) -> None:
    if args.json:
        checks = [result._asdict() for result in results]
        print(json.dumps({"ok": not counts[FAILED], "checks": checks}))
        return
    for result in results:
        if args.verbose or result.is_bad:
            print(f"{result.id:10}  {result.status:7}  {result.detail}")
    summary = ", ".join(f"{number} {name}" for name, number in counts.items())
    print(f"check: {summary}{'' if args.verbose else ' (--verbose prints all)'}")


def _measure(args: Namespace) -> NoReturn:
    """Replaces this process by one that imports TensorFlow, which no command does."""
    from slurm_resolver.coordination.client import leave_all

    leave_all()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    options = {"resolver": values_of(args, ClusterOptions), "json": args.json}
    module = "slurm_resolver.tf.collective_check"
    os.execv(sys.executable, [sys.executable, "-m", module, json.dumps(options)])
