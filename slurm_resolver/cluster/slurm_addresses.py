"""The addresses of a step's nodes where their names do not resolve, as in clouds and Kubernetes."""

from __future__ import annotations

import functools
import socket
import time
from typing import Dict, Sequence

from slurm_resolver.cluster.node_address import BY_SLURM
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.errors import AddressError
from slurm_resolver.slurm.hostlist_compress import compress_hostlist
from slurm_resolver.slurm.step import SlurmStep

_LOOPBACK = "127.0.0.1"
_MOST_SECONDS = 10.0  # over which the tasks of a large step spread their questions
_QUESTIONS_PER_SECOND = 100


def with_addresses(
    step: SlurmStep, nodes: Sequence[str], num_tasks: int, options: ClusterOptions
) -> ClusterOptions:
    """Returns the options with each node's address, where the nodes' names are not to be used.

    With ``node_address="slurm"`` every task asks Slurm once for the addresses (NodeAddr).

    Raises:
        AddressError: where Slurm does not answer; where the names do not resolve and no
            `node_address` is given.
    """
    rank = step.rank or 0
    if options.node_address == BY_SLURM:
        if step.simulated:
            return options._replace(node_address=None)
        spread = min(_MOST_SECONDS, num_tasks / _QUESTIONS_PER_SECOND)
        addresses = _ask_slurm(compress_hostlist(sorted(nodes)), spread * rank / num_tasks)
        return options._replace(node_address=addresses)
    is_task = options.layout != "environment" and step.is_live and step.rank is not None
    if options.node_address is not None or not is_task or num_tasks == 1:
        return options
    # A node may resolve its own name only.
    asked = next((node for node in nodes if node != step.node_name), nodes[0])
    try:
        socket.getaddrinfo(asked, None, type=socket.SOCK_STREAM)
    except OSError as error:
        if len(nodes) == 1:
            return options._replace(node_address={asked: _LOOPBACK})
        raise AddressError(
            f"the name of node {asked} does not resolve here ({error}). Pass node_address='slurm' "
            "to use the addresses that Slurm knows, or a function or suffix that gives the name of "
            "another interface."
        ) from error
    return options


@functools.lru_cache(maxsize=4)
def _ask_slurm(nodes: str, delay: float) -> Dict[str, str]:
    from slurm_resolver.slurm.scontrol import node_addresses  # few steps need it

    if delay >= 1.0:
        time.sleep(delay)
    try:
        return node_addresses(nodes)
    except OSError as error:
        raise AddressError(
            f"node_address='slurm': Slurm did not give the addresses of {nodes}: {error}. Pass a "
            "function or mapping from node names to hosts instead."
        ) from error
