"""Options that several subcommands share."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
from collections.abc import Collection
from typing import Any, Callable

from slurm_resolver.cluster.options import LAYOUTS, PLACEMENTS, WORKER_ORDERS, ClusterOptions
from slurm_resolver.errors import LaunchError


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Adds an option for each keyword of `slurm_resolver.resolve`."""
    add = parser.add_argument
    add(
        "--jobs",
        type=numbers_by_name,
        metavar="JOB=N,…",
        help="tasks of each job, such as ps=2,worker=-1 (-1: the rest); default: all workers",
    )
    add(
        "--placement",
        choices=PLACEMENTS,
        default="spread",
        help="spread: parameter servers on distinct nodes (default); "
        "rank: as TensorFlow's resolver",
    )
    add(
        "--worker-order",
        choices=WORKER_ORDERS,
        default="ring",
        help="ring: TensorFlow's ring leaves each node once (default); rank: by rank",
    )
    add(
        "--het-groups",
        type=numbers_by_name,
        metavar="JOB=GROUP,…",
        help="take a job's tasks from this component of a heterogeneous step",
    )
    add("--port-base", type=int, metavar="PORT", help="first port on each node")
    add(
        "--node-address",
        metavar="SUFFIX",
        help="appended to node names, as in --node-address=-ib0",
    )
    add(
        "--gpu-jobs",
        type=lambda text: text.split(","),
        metavar="JOB,…",
        help="jobs whose tasks use GPUs; default: all but ps and, beside ps, chief",
    )
    add(
        "--layout",
        choices=LAYOUTS,
        default="auto",
        help="source of the layout; auto: Slurm's variables, or the tasks if these do not suffice",
    )


def cluster_options(args: argparse.Namespace) -> ClusterOptions:
    """Returns the values of these options."""
    return ClusterOptions(**values_of(args, ClusterOptions._fields))


def values_of(args: argparse.Namespace, names: Collection[str]) -> dict[str, Any]:
    """Returns the values of the options that have one of these names."""
    return {name: value for name, value in vars(args).items() if name in names}


def add_command(parser: argparse.ArgumentParser, metavar: str = "COMMAND [ARGUMENT …]") -> None:
    """Adds the command line to start, which follows `--`."""
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar=f"-- {metavar}")


def add_tasks_per_node(add: Callable[..., object]) -> None:
    """Adds an option with both of Slurm's spellings."""
    add(
        "--tasks-per-node",
        "--ntasks-per-node",
        dest="tasks_per_node",
        type=count(1),
        default=1,
        metavar="N",
        help="tasks on each node (1)",
    )


def command_of(args: argparse.Namespace) -> list[str]:
    """Returns the words of the command line to start."""
    words: list[str] = args.command_line
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise LaunchError(f"no command after -- (see slurm-resolver {args.command} --help)")
    return words


def count(least: int, most: int = 1_000_000) -> Callable[[str], int]:
    """Returns a function that reads a number in this range."""

    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a number from {least} to {most}")
        return int(text)

    return read


def numbers_by_name(text: str) -> dict[str, int]:
    """Reads ``ps=2,worker=-1``."""
    found = {}
    for part in text.split(","):
        pair = re.fullmatch(r"\s*([^\s=][^=]*?)\s*=\s*(-?[0-9]{1,9})\s*", part)
        if pair is None or pair[1] in found:
            raise argparse.ArgumentTypeError(
                f"{part!r} in {text!r}: expected NAME=NUMBER, each name once"
            )
        found[pair[1]] = int(pair[2])
    return found


def seconds(text: str) -> float:
    """Reads a number of seconds."""
    with contextlib.suppress(ValueError):
        number = float(text)
        if 0 <= number < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, a number from 0 on")
