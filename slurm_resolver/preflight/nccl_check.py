"""Judges NCCL's choice of interfaces: on which nodes it is wrong, and which line mends it."""

from __future__ import annotations

import shlex
from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

from slurm_resolver.preflight.nccl_rules import names_chosen
from slurm_resolver.slurm.hostlist_compress import compress_hostlist

_VARIABLE = "NCCL_SOCKET_IFNAME"


class NcclChoice(NamedTuple):
    """What NCCL chooses on one node, and what became of it.

    Attributes:
        names: the node's interfaces.
        taken: those that NCCL takes.
        unreached: of these the ones at whose address another node could not connect, with what it
            found.
        leads: the interfaces over which this node reaches the others.
        asked_for: the value of NCCL_SOCKET_IFNAME; '' where it is not set.
        older: those that only NCCL before 2.28 takes, where nothing tells which it is.
    """

    names: Sequence[str]
    taken: Sequence[str]
    unreached: Mapping[str, str]
    leads: Sequence[str]
    asked_for: str = ""
    older: Sequence[str] = ()


def find_wrong_choices(choices: Mapping[str, NcclChoice]) -> List[str]:
    """Returns what is wrong with NCCL's choices, by node, and at the end what to do; [] if nothing.

    Nodes at which the same is wrong are named together.
    """
    kinds: Dict[Tuple[str, str, str], List[str]] = {}
    for node, one in choices.items():
        if one.unreached or not one.taken:
            which = "NCCL before 2.28" if set(one.unreached) <= set(one.older) else "NCCL"
            names = " and ".join(sorted(one.unreached))
            kinds.setdefault((which if names else "NCCL", names, one.asked_for), []).append(node)
    problems = []
    for (which, names, asked_for), nodes in kinds.items():
        where = compress_hostlist(nodes)
        by = f" by {_VARIABLE}={asked_for}" if asked_for else ""
        if names:
            do, found = "do" if " and " in names else "does", choices[nodes[0]].unreached
            problems.append(
                f"{which} takes {names} on {where}{by}, which {do} not lead to the other nodes "
                f"({found[min(found)]})"
            )
        else:
            problems.append(f"{which} finds no interface on {where}{by}, and fails")
    return [*problems, _advise(choices)] if problems else []


def _advise(choices: Mapping[str, NcclChoice]) -> str:
    """Returns the line that has NCCL take those interfaces that lead to the other nodes."""
    right = {
        node: [name for name in one.leads if name not in one.unreached]
        or [name for name in one.taken if name not in one.unreached]
        for node, one in choices.items()
    }
    without = [node for node, names in right.items() if not names]
    if without:
        return f"no interface of {compress_hostlist(without)} is known to lead to the others"
    values = {node: "=" + ",".join(names) for node, names in right.items()}
    value = "=" + ",".join(dict.fromkeys(name for names in right.values() for name in names))
    if all(
        set(names_chosen(value, one.names)) == set(right[node]) for node, one in choices.items()
    ):
        return f"before srun: export {_VARIABLE}={shlex.quote(value)}"
    nodes_by_value: Dict[str, List[str]] = {}
    for node, own in values.items():
        nodes_by_value.setdefault(own, []).append(node)
    each = ", ".join(
        f"{_VARIABLE}={own} on {compress_hostlist(nodes)}" for own, nodes in nodes_by_value.items()
    )
    return (
        "no value is right on every node: set it in each task's environment or in the nodes' "
        f"/etc/nccl.conf, {each}"
    )
