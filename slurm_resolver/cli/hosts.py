"""`slurm-resolver hosts`: Slurm's host lists, expanded, folded and counted."""

from __future__ import annotations

import argparse
import sys
from typing import Iterator, List

from slurm_resolver.slurm.hostlist import count_hostlist, expand_hostlist
from slurm_resolver.slurm.hostlist_compress import compress_hostlist, sort_hosts

DESCRIPTION = """\
Expands, folds and counts host lists as Slurm writes them, without Slurm. LIST is a host list,
folded or not. Without a LIST, or for -, lists are read from the standard input, separated by white
space or commas, in UTF-8."""

EPILOG = """\
exit status: 0; 2 for a list that cannot be read.

examples:
  slurm-resolver hosts expand 'n[9-11],login'
  slurm-resolver hosts expand --separator , "$SLURM_JOB_NODELIST"
  squeue --noheader --format %N | slurm-resolver hosts fold --sort --unique
  slurm-resolver hosts count 'rack[1-4]n[01-32]'"""

_ACTIONS = {
    "expand": ("print the names, one a line", "as `scontrol show hostnames` does"),
    "fold": ("print one host list for all names", "as `scontrol show hostlist` does"),
    "count": ("print how many names there are", "without writing them out"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (summary, how) in _ACTIONS.items():
        action = actions.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}, {how}."
        )
        action.add_argument(
            "lists",
            nargs="*",
            metavar="LIST",
            help="a host list; without any, or for -: those on the standard input",
        )
        if name == "expand":
            action.add_argument(
                "-S",
                "--separator",
                default="\n",
                metavar="TEXT",
                help=r"put TEXT between the names (default: \n, a new line; \t is a tab)",
            )
        action.add_argument(
            "-u", "--unique", action="store_true", help="keep every name once, at its first place"
        )
        if name != "count":
            action.add_argument(
                "--sort",
                action="store_true",
                help="sort the names, n9 before n10; by default they keep their order",
            )


def main(args: argparse.Namespace) -> int:
    """Prints what was asked for; always returns 0."""
    if args.action == "count" and not args.unique:
        _print(str(sum(map(count_hostlist, _lists(args.lists)))))
        return 0
    names: List[str] = []
    for hostlist in _lists(args.lists):
        names += expand_hostlist(hostlist)
    if args.unique:
        names = list(dict.fromkeys(names))
    if args.action == "count":
        _print(str(len(names)))
        return 0
    if args.sort:
        names = sort_hosts(names)
    if args.action == "fold":
        _print(compress_hostlist(names))
    elif names:
        separator = args.separator.replace(r"\n", "\n").replace(r"\t", "\t")
        _print(separator.join(names))
    return 0


def _lists(arguments: List[str]) -> Iterator[str]:
    """Yields the arguments, and for ``-`` the standard input."""
    for argument in arguments or ["-"]:
        if argument == "-":
            # Bytes that are not UTF-8 are printed as they were read, whatever the locale.
            text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
            yield text.replace("\r", "\n")
        else:
            yield argument


def _print(text: str) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(f"{text}\n".encode("utf-8", "surrogateescape"))
