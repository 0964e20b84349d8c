"""`slurm-resolver hosts`: Slurm's host lists, expanded, folded and counted."""

from __future__ import annotations

import argparse
import sys

from slurm_resolver.slurm.hostlist import compress_hostlist, count_hostlist, expand_hostlist

DESCRIPTION = """\
Expands, folds and counts host lists as Slurm writes them, without Slurm."""

EPILOG = """\
exit status: 0; 2 for a list that cannot be read.

examples:
  slurm-resolver hosts expand 'n[9-11],login'
  squeue --noheader --format %N | slurm-resolver hosts expand | sort -uV
  slurm-resolver hosts fold n9 n10 n11 login
  slurm-resolver hosts count 'rack[1-4]n[01-32]'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    parser.add_argument(
        "action",
        choices=("expand", "fold", "count"),
        help="print a line a name, one host list for all names, or how many names there are",
    )
    parser.add_argument(
        "lists",
        nargs="*",
        metavar="LIST",
        help="a host list; without any, those on the standard input, separated by white space",
    )


def main(args: argparse.Namespace) -> int:
    """Prints what was asked for; always returns 0."""
    lists = args.lists or [sys.stdin.read()]
    if args.action == "count":
        print(sum(map(count_hostlist, lists)))
        return 0
    names = [name for hostlist in lists for name in expand_hostlist(hostlist)]
    if args.action == "fold":
        print(compress_hostlist(names))
    elif names:
        print("\n".join(names))
    return 0
