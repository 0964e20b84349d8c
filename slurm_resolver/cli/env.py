"""`slurm-resolver env`: prints what a bug report needs, without secrets."""

from __future__ import annotations

import argparse
import json
import os

DESCRIPTION = """\
Prints what a bug report needs: versions, the machine, the variables that determine the cluster, and
the cluster. It omits values of other variables, credentials, and the user's name and home. Under
srun every task prints its own report."""

EPILOG = """\
exit status: 0, even if the cluster cannot be resolved; the report says why.

examples:
  slurm-resolver env
  srun -N1 -n1 slurm-resolver env --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace) -> int:
    """Prints the report."""
    from slurm_resolver.diagnostics.bug_report import make_report

    report = make_report(os.environ)
    if args.json:
        print(json.dumps(report))
        return 0
    for title, facts in report.items():
        print(f"{title}:")
        width = max(map(len, facts), default=0)
        for name, value in facts.items():
            print(f"  {name:{width}}  {value}")
    return 0
