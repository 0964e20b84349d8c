"""Where the tasks of a step meet: at the first task of its first node.

Each task can name that place alone, before it knows where the others run.
"""

from __future__ import annotations

from typing import Callable

from slurm_resolver.cluster.layout import Layout
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.slurm.step import SlurmStep

HostOf = Callable[[str], str]  # from a node's name to the host to connect to


def rendezvous_without_layout(step: SlurmStep, port: int, host_of: HostOf) -> Rendezvous:
    """Returns where tasks meet that have yet to find out where all of them run.

    Raises:
        EnvironmentValueError: where Slurm does not tell this task its own place.
    """
    first = step.require(SlurmStep.nodes)[0]
    own = (step.require(SlurmStep.node_name), step.require(SlurmStep.local_rank))
    return _rendezvous(step, first, port, host_of, own == (first, 0))


def rendezvous_of_layout(step: SlurmStep, layout: Layout, port: int, host_of: HostOf) -> Rendezvous:
    """Returns where the tasks of a step meet whose layout is known.

    Where Slurm tells the task its own node, that counts and not the layout: tasks that disagree on
    the layout are to meet as well, and to find that out.
    """
    rank = step.require(SlurmStep.rank)
    local_rank = layout.local_rank_of[rank] if step.local_rank is None else step.local_rank
    if step.node_name is not None and step.nodes is not None:
        first, own = step.nodes[0], step.node_name
    else:
        first, own = layout.nodes[0], layout.nodes[layout.node_of[rank]]
    return _rendezvous(step, first, port, host_of, (own, local_rank) == (first, 0))


def _rendezvous(
    step: SlurmStep, first: str, port: int, host_of: HostOf, is_host: bool
) -> Rendezvous:
    identity = f"{step.name}.{step.sluid}"
    return Rendezvous(host_of(first), port, first, identity, step.require(SlurmStep.rank), is_host)
