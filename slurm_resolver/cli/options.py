"""The options that say how to make a cluster of a step, shared by the subcommands."""

from __future__ import annotations

import argparse
from typing import Dict

from slurm_resolver.cluster.resolve import LAYOUTS, ClusterOptions
from slurm_resolver.cluster.roles import PLACEMENTS, WORKER_ORDERS


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that stand for the keywords of `slurm_resolver.resolve`."""
    parser.add_argument(
        "--jobs",
        type=numbers,
        metavar="JOB=N,…",
        help="tasks of each job, such as ps=2,worker=-1 (-1: the rest); default: all workers",
    )
    parser.add_argument(
        "--placement",
        choices=PLACEMENTS,
        default="spread",
        help="spread parameter servers over the nodes, away from the chief's (default), or deal "
        "ranks as TensorFlow does",
    )
    parser.add_argument(
        "--worker-order",
        choices=WORKER_ORDERS,
        default="ring",
        help="number workers so that a ring leaves each node once (ring, the default), or by rank",
    )
    parser.add_argument(
        "--het-groups",
        type=numbers,
        metavar="JOB=GROUP,…",
        help="take a job's tasks from that component of a heterogeneous step",
    )
    parser.add_argument("--port-base", type=int, metavar="PORT", help="first port on each node")
    parser.add_argument("--node-address", metavar="SUFFIX", help="suffix: --node-address=-ib0")
    parser.add_argument(
        "--gpu-jobs",
        type=lambda text: text.split(","),
        metavar="JOB,…",
        help="jobs whose tasks use GPUs; default: all but ps and, beside ps, chief",
    )
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        default="auto",
        help="where to take the layout from; by default the tasks meet where no variable tells",
    )


def cluster_options(args: argparse.Namespace) -> ClusterOptions:
    """Returns what these options say of the cluster."""
    return ClusterOptions(
        jobs=args.jobs,
        port_base=args.port_base,
        placement=args.placement,
        worker_order=args.worker_order,
        het_groups=args.het_groups,
        node_address=args.node_address,
        gpu_jobs=args.gpu_jobs,
        layout=args.layout,
    )


def numbers(text: str) -> Dict[str, int]:
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
