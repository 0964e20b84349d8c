"""The command `slurm-resolver`: one module a subcommand, no TensorFlow anywhere.

Exit status: what the subcommand says, and 2 where usage or environment are wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Optional, Sequence

import slurm_resolver
from slurm_resolver.cli import check, exec, explain, run, show
from slurm_resolver.errors import SlurmResolverError


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all subcommands."""
    parser = argparse.ArgumentParser(
        prog="slurm-resolver",
        description="TensorFlow clusters on Slurm: look at one, or start one on this machine.",
    )
    parser.add_argument(
        "--version", action="version", version=f"slurm-resolver {slurm_resolver.__version__}"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in (run, exec, show, check, explain):
        command.add_parser(commands)
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the command line, and returns the exit status."""
    args = build_parser().parse_args(argv)
    try:
        status = int(args.function(args))
        sys.stdout.flush()
        return status
    except SlurmResolverError as error:
        print(f"slurm-resolver {args.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `slurm-resolver show | head`
        # what is left in the buffer must not fail a second time, when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
