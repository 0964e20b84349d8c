"""Meetings of a step's tasks, in which the meeting point may ask Slurm where the nodes are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Mapping, Optional, Sequence

from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.slurm.hostlist_compress import compress_hostlist

if TYPE_CHECKING:
    from slurm_resolver.rendezvous.first_half import FirstHalf
    from slurm_resolver.rendezvous.gathering import Note
    from slurm_resolver.rendezvous.host import Decide
    from slurm_resolver.rendezvous.wire import Message


def meet(
    rendezvous: Rendezvous,
    purpose: str,
    names: Sequence[str],
    note: Note,
    decide: Decide,
    timeout: float,
    by_pmi2: Optional[Callable[[FirstHalf], Message]] = None,
) -> Message:
    """Sends this task's note to the meeting point, and returns the answer that all tasks get.

    As `slurm_resolver.rendezvous.barrier.meet`; where the name of the meeting point's node does not
    resolve on others, it asks Slurm once for their addresses, and calls them.
    """
    from slurm_resolver.rendezvous import barrier  # what few steps need takes long to import

    return barrier.meet(
        rendezvous,
        purpose,
        names,
        note,
        decide,
        timeout,
        addresses_of=_ask_slurm,
        by_pmi2=by_pmi2,
    )


def _ask_slurm(nodes: Sequence[str]) -> Mapping[str, str]:
    from slurm_resolver.slurm.scontrol import node_addresses

    return node_addresses(compress_hostlist(nodes))
