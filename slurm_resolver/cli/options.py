"""Options that several subcommands share."""

from __future__ import annotations

import argparse
from typing import Callable, Dict, List, Optional

from slurm_resolver.cluster.options import LAYOUTS, PLACEMENTS, WORKER_ORDERS, ClusterOptions
from slurm_resolver.errors import LaunchError


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Adds an option for each keyword of `slurm_resolver.resolve`."""
    add = parser.add_argument
    help_ = "tasks of each job, such as ps=2,worker=-1 (-1: the rest); default: all workers"
    add("--jobs", type=numbers_by_name, metavar="JOB=N,…", help=help_)
    help_ = (
        "spread: parameter servers on distinct nodes, not the chief's (default); rank: as "
        "TensorFlow's own resolver"
    )
    add("--placement", choices=PLACEMENTS, default="spread", help=help_)
    help_ = (
        "ring: number the workers so that TensorFlow's ring leaves each node once (default); rank: "
        "by rank"
    )
    add("--worker-order", choices=WORKER_ORDERS, default="ring", help=help_)
    help_ = "take a job's tasks from this component of a heterogeneous step"
    add("--het-groups", type=numbers_by_name, metavar="JOB=GROUP,…", help=help_)
    add("--port-base", type=int, metavar="PORT", help="first port on each node")
    help_ = "appended to node names, as in --node-address=-ib0"
    add("--node-address", metavar="SUFFIX", help=help_)
    help_ = (
        "jobs whose tasks use GPUs; default: all but ps, dispatcher, data_worker and, beside ps, "
        "chief"
    )
    add("--gpu-jobs", type=lambda text: text.split(","), metavar="JOB,…", help=help_)
    help_ = "source of the layout; auto: Slurm's variables, or the tasks if these do not suffice"
    add("--layout", choices=LAYOUTS, default="auto", help=help_)


def cluster_options(args: argparse.Namespace) -> ClusterOptions:
    """Returns the values of these options."""
    given = vars(args)
    return ClusterOptions(**{name: given[name] for name in ClusterOptions._fields if name in given})


def add_command(parser: argparse.ArgumentParser, metavar: str = "COMMAND [ARGUMENT …]") -> None:
    """Adds the command line to start, which follows `--`."""
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar=f"-- {metavar}")


def add_tasks_per_node(add: Callable[..., object]) -> None:
    """Adds an option with both of Slurm's spellings."""
    names = ("--tasks-per-node", "--ntasks-per-node")
    help_ = "tasks on each node (1)"
    add(*names, dest="tasks_per_node", type=int, default=1, metavar="N", help=help_)


def command_of(args: argparse.Namespace) -> List[str]:
    """Returns the words of the command line to start."""
    words: List[str] = args.command_line
    return words[1:] if words[:1] == ["--"] else words


def numbers_by_name(text: str) -> Dict[str, int]:
    """Reads ``ps=2,worker=-1``."""
    found = {}
    for part in text.split(","):
        name, equals, number = part.partition("=")
        if not equals or not name.strip() or name.strip() in found:
            raise argparse.ArgumentTypeError(f"{part!r} in {text!r}: expected NAME=NUMBER, once")
        try:
            found[name.strip()] = int(number)
        except ValueError:
            message = f"{part!r} in {text!r}: expected a whole number after '='"
            raise argparse.ArgumentTypeError(message) from None
    return found


def seconds(text: str) -> float:
    """Reads a number of seconds."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, a number from 0 on")
    return number


def check_range(option: str, value: Optional[int], least: int, most: Optional[int] = None) -> None:
    """Raises LaunchError for a value that is out of range; None means not given."""
    if value is not None and not least <= value <= (most or 1_000_000):
        end = f"to {most}" if most else "on"
        raise LaunchError(f"{option} {value}: expected a number from {least} {end}")
