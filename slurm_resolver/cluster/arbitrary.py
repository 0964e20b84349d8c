"""Finds the list behind an arbitrary distribution, where task t runs on the t-th host of a list.

Slurm does not hand that list to the tasks; two variables may lead to it, and either may be left
over from another step. A list counts only if it puts on every node as many tasks as the step has
there.
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
_TIMES = re.compile(r"(.+)\*([0-9]{1,18})")

_REMEDY = (
    "Use another distribution, or name the hosts in a file that all nodes can read and point "
    "SLURM_HOSTFILE at it (an absolute path) before srun."
)


def arbitrary_hosts(step: SlurmStep, nodes: Sequence[str], counts: Sequence[int]) -> List[str]:
    """Returns by rank the host that it runs on.

    Raises:
        UnknownLayoutError: where no list is to be found, or two lists fit and differ.
    """
    wanted = Counter(dict(zip(nodes, counts)))
    found: List[Tuple[str, List[str]]] = []
    refused: List[str] = []
    for name, hosts, problem in _candidates(step, nodes, counts):
        if problem is None and Counter(hosts) == wanted:
            found.append((name, hosts))
        else:
            reason = problem or "its hosts are not those of this step, or not as often"
            refused.append(f"{name}: {reason}")
    if not found:
        tried = "; ".join(refused) or "neither SLURM_HOSTFILE nor SLURM_ARBITRARY_NODELIST is set"
        raise UnknownLayoutError(
            "SLURM_DISTRIBUTION=arbitrary, but the list that says where each task runs is not to "
            f"be found ({tried}). {_REMEDY}"
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
    """Yields each list that there is: where it stands, its hosts, and what is wrong with it."""
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
        # Slurm before 26.05 may have sorted the list: in the nodes' own order it tells nothing.
        if step.sluid is None and hosts == list(nodes):
            yield name, hosts, "it is sorted, as older Slurm leaves it, and has lost its order"
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
        match = _TIMES.fullmatch(line)
        times = int(match[2]) if match else 1
        for host in expand_hostlist(match[1] if match else line):
            if len(hosts) + times > MAX_HOSTS:
                raise HostlistError(f"more than {MAX_HOSTS:,} hosts", line, line)
            hosts += [host] * times
        if len(hosts) >= total:
            break
    return hosts[:total]
