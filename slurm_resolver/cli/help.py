"""`slurm-resolver help`: what --help prints."""

from __future__ import annotations

import argparse

DESCRIPTION = """\
Prints what COMMAND is for, its options and examples, as COMMAND --help does; without COMMAND, what
commands there are."""

EPILOG = """\
exit status: 0, and 2 for an unknown command.

examples:
  slurm-resolver help
  slurm-resolver help run"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    from slurm_resolver.cli import COMMANDS

    parser.add_argument(
        "about", nargs="?", choices=list(COMMANDS), metavar="COMMAND", help="a command"
    )


def main(args: argparse.Namespace) -> int:
    """Prints the help."""
    from slurm_resolver.cli import build_parser

    asked = [] if args.about is None else [args.about]
    build_parser(asked).parse_args([*asked, "--help"])
    raise AssertionError("--help exits")
