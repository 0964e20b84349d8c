"""The subcommands' common options: how to make a cluster of a step."""

from __future__ import annotations

import argparse
from typing import Dict

from slurm_resolver.cluster.options import LAYOUTS, PLACEMENTS, WORKER_ORDERS, ClusterOptions


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Adds an option for each keyword of `slurm_resolver.resolve`."""
    parser.add_argument(
        "--jobs",
        type=numbers_by_name,
        metavar="JOB=N,…",
        help="tasks of each job, such as ps=2,worker=-1 (-1: the rest); default: all workers",
    )
    parser.add_argument(
        "--placement",
        choices=PLACEMENTS,
        default="spread",
        help="spread: parameter servers on distinct nodes, not the chief's (default); rank: as "
        "TensorFlow's own resolver",
    )
    parser.add_argument(
        "--worker-order",
        choices=WORKER_ORDERS,
        default="ring",
        help="ring: number workers so that TensorFlow's ring leaves each node once (default); "
        "rank: by rank",
    )
    parser.add_argument(
        "--het-groups",
        type=numbers_by_name,
        metavar="JOB=GROUP,…",
        help="take a job's tasks from that component of a heterogeneous step",
    )
    parser.add_argument("--port-base", type=int, metavar="PORT", help="first port on each node")
    parser.add_argument(
        "--node-address", metavar="SUFFIX", help="appended to node names: --node-address=-ib0"
    )
    parser.add_argument(
        "--gpu-jobs",
        type=lambda text: text.split(","),
        metavar="JOB,…",
        help="jobs whose tasks use GPUs; default: all but ps, dispatcher, data_worker and, beside "
        "ps, chief",
    )
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        default="auto",
        help="where the layout comes from; auto: from the tasks themselves if no variable tells it",
    )


def cluster_options(args: argparse.Namespace) -> ClusterOptions:
    """Returns the values of these options."""
    given = vars(args)
    return ClusterOptions(**{name: given[name] for name in ClusterOptions._fields if name in given})


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
