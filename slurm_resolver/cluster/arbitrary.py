"""Finds the host list of an arbitrary distribution: rank r runs on the r-th host of that list.

Slurm does not pass the list on to the tasks. Two variables may lead to it, and each of them may be
left over from another step. So a list is accepted only if it has every node as often as the step
has tasks there. Sources: srun(1), option ``--distribution``, and runs on live clusters.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Iterator, List, Optional, Sequence, Tuple

from slurm_resolver.errors import HostlistError, UnknownLayoutError
from slurm_resolver.slurm.hostlist import MAX_HOSTS, expand_hostlist
from slurm_resolver.slurm.step import SlurmStep

_MAX_HOSTFILE_BYTES = 64 * 2**20
_HOST_AND_COUNT = re.compile(r"(.+)\*([0-9]{1,18})")

_REMEDY = (
    "Use another distribution, or name the hosts in a file that all nodes can read and point "
    "SLURM_HOSTFILE at it (an absolute path) before srun."
)


def arbitrary_hosts(step: SlurmStep, nodes: Sequence[str], counts: Sequence[int]) -> List[str]:
    """Returns by rank the node that it runs on.

    Raises:
        UnknownLayoutError: where no list can be found, or two different lists fit.
    """
    expected = Counter(dict(zip(nodes, counts)))
    found: List[Tuple[str, List[str]]] = []
    rejected: List[str] = []
    for name, hosts, problem in _candidates(step, nodes, counts):
        if problem is None and Counter(hosts) == expected:
            found.append((name, hosts))
        else:
            reason = problem or "it does not have every node as often as this step has tasks there"
            rejected.append(f"{name}: {reason}")
    if not found:
        tried = "; ".join(rejected) or "neither SLURM_HOSTFILE nor SLURM_ARBITRARY_NODELIST is set"
        raise UnknownLayoutError(
            "SLURM_DISTRIBUTION=arbitrary, but the list that tells where each task runs cannot be "
            f"found ({tried}). {_REMEDY}"
        )
    if any(hosts != found[0][1] for _, hosts in found):
        names = " and ".join(name for name, _ in found)
        raise UnknownLayoutError(
            f"SLURM_DISTRIBUTION=arbitrary, and {names} both fit this step but differ in order. "
            "Unset the one that is left over from another step."
        )
    return found[0][1]


def _candidates(
    step: SlurmStep, nodes: Sequence[str], counts: Sequence[int]
) -> Iterator[Tuple[str, List[str], Optional[str]]]:
    """Yields for each list that is set: where it comes from, its hosts, what is wrong with it."""
    total = sum(counts)
    if step.hostfile is not None:
        name = f"SLURM_HOSTFILE={step.hostfile}"
        try:
            yield name, _read_hostfile(step.hostfile, total), None
        except (OSError, ValueError) as error:
            yield name, [], str(error)
    if step.arbitrary_nodelist is not None:
        hosts = list(step.arbitrary_nodelist[:total])
        name = "SLURM_ARBITRARY_NODELIST"
        # Older Slurm sorts this list. One in the order of the nodes may be a sorted one.
        if step.sluid is None and hosts == list(nodes):
            yield (
                name,
                hosts,
                "it is sorted, as older Slurm sorts it, and may have lost its order",
            )
        else:
            yield name, hosts, None


def _read_hostfile(path: str, total: int) -> List[str]:
    """Reads a host file as srun does: host lists, ``host*N`` for N tasks, ``#`` for comments."""
    if os.path.getsize(path) > _MAX_HOSTFILE_BYTES:
        raise ValueError("the file is too large for a list of hosts")
    with open(path, encoding="utf-8") as file:
        lines = [line.partition("#")[0].strip() for line in file]
    hosts: List[str] = []
    for line in lines:
        match = _HOST_AND_COUNT.fullmatch(line)
        count = int(match[2]) if match else 1
        for host in expand_hostlist(match[1] if match else line):
            if len(hosts) + count > MAX_HOSTS:
                raise HostlistError(f"more than {MAX_HOSTS:,} hosts", line, line)
            hosts += [host] * count
        if len(hosts) >= total:
            break
    return hosts[:total]
