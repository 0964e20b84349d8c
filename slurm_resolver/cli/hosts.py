"""`slurm-resolver hosts`: expands, folds and counts Slurm's host lists."""

from __future__ import annotations

import argparse
import sys

from slurm_resolver.slurm.hostlist import compress_hostlist, count_hostlist, expand_hostlist

DESCRIPTION = """\
Expands, folds and counts host lists as Slurm writes them, without Slurm."""

EPILOG = """\
exit status: 0; 2 for a list that is not valid.

examples:
  slurm-resolver hosts expand 'n[9-11],login'
  squeue --noheader --format %N | slurm-resolver hosts expand | sort -uV
  slurm-resolver hosts fold n9 n10 n11 login
  slurm-resolver hosts count 'rack[1-4]n[01-32]'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    help_ = "print one name in each line, one host list of all names, or the number of names"
    parser.add_argument("action", choices=("expand", "fold", "count"), help=help_)
    help_ = "a host list; default: those on standard input, separated by white space"
    parser.add_argument("lists", nargs="*", metavar="LIST", help=help_)


def main(args: argparse.Namespace) -> int:
    """Prints the result; always returns 0."""
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
