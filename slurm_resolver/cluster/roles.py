"""The ranks of each job, in the order of the tasks' indices in it."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from slurm_resolver.cluster.jobs import JOB_NAMES, JobCounts
from slurm_resolver.cluster.layout import Layout
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.ring_order import order_by_ring
from slurm_resolver.errors import JobsError

Roles = dict[str, Sequence[int]]  # ``roles[job][index]`` is a rank; no job is without ranks


def assign_roles(layout: Layout, counts: JobCounts, options: ClusterOptions) -> Roles:
    """Assigns a job and an index to every rank of the layout.

    The placement "rank" assigns ranks to jobs in alphabetical order of the job names, as
    TensorFlow's own resolver does. "spread" does the same if that spreads the parameter servers
    over the nodes as evenly as possible, and puts no more of them on the chief's node than
    necessary. Otherwise the chief gets the first rank, and the parameter servers the first free
    ranks of one node after the other, the chief's node last in every round. The other jobs get the
    remaining ranks in alphabetical order.

    `counts` is the number of tasks of each job that has any. They sum to the tasks of the step.

    Raises:
        JobsError: for `het_groups` that do not fit.
    """
    allowed = _allowed_ranks(layout, counts, options)
    roles = _assign(layout, counts, allowed)
    if options.placement == "spread" and "ps" in counts:
        spread = _assign(layout, counts, allowed, spreads=True)
        if _crowding(layout, spread) < _crowding(layout, roles):
            roles = spread
    if options.worker_order == "ring" and "worker" in roles:
        roles["worker"] = order_by_ring(
            roles["worker"], layout.node_of, roles["chief"][0] if "chief" in roles else None
        )
    return roles


def ranks_of(roles: Roles, jobs: Iterable[str]) -> list[int]:
    """Returns the ranks that have these jobs, one job after the other, by index."""
    return [rank for job in jobs for rank in roles.get(job, ())]


def _allowed_ranks(layout: Layout, counts: JobCounts, options: ClusterOptions) -> dict[str, range]:
    """Returns by name of each job in `het_groups` the ranks of its component."""
    if not options.het_groups:
        return {}
    allowed = {}
    het_groups = dict(options.het_groups)
    given = f"het_groups={het_groups!r}"
    needed: Counter[int] = Counter()
    for name, group in het_groups.items():
        known = dict.fromkeys([*JOB_NAMES, *(options.jobs or ())])
        if name not in known:
            raise JobsError(f"{given}: no job {name!r}; there are {', '.join(known)}.")
        if not layout.components:
            raise JobsError(
                f"{given}, but this step is not heterogeneous: leave het_groups out, or start with "
                "`srun … : …` in a heterogeneous allocation."
            )
        if group not in layout.components:
            groups = ", ".join(map(str, layout.components))
            raise JobsError(f"{given}: the step has no component {group!r}; it has {groups}.")
        allowed[name] = ranks = layout.components[group]
        needed[group] += counts.get(name, 0)
        if needed[group] > len(ranks):
            raise JobsError(
                f"{given} and jobs need {needed[group]} tasks of component {group}, which has "
                f"{len(ranks)}. Give the jobs fewer tasks there, or start more tasks in this "
                "component."
            )
    return allowed


def _assign(
    layout: Layout,
    counts: JobCounts,
    allowed: Mapping[str, range],
    spreads: bool = False,
) -> Roles:
    """Returns the ranks of each job, ascending.

    The jobs in `allowed` come first and get only the ranks given there. If `spreads`, chief and ps
    are next. Each gets the lowest free ranks, but the parameter servers those on different nodes if
    `spreads`.
    """
    roles: Roles = {}
    free: Sequence[int] = range(layout.num_tasks)
    first = ("chief", "ps") if spreads else ()
    for job in sorted(counts, key=lambda job: (job not in allowed, job not in first, job)):
        count = counts[job]
        candidates = free
        if job in allowed:
            candidates = [rank for rank in free if rank in allowed[job]]
        if spreads and job == "ps":
            roles[job] = _spread_ranks(layout, candidates, count, roles.get("chief", ()))
        else:
            roles[job] = candidates[:count]
        if roles[job] == free[:count]:
            free = free[count:]
        else:
            taken = set(roles[job])
            free = [rank for rank in free if rank not in taken]
    return roles


def _crowding(layout: Layout, roles: Roles) -> tuple[list[int], int]:
    """Returns the numbers of parameter servers on the nodes, most first, and on the chief's node.

    No other placement has smaller ones than `_spread_ranks`.
    """
    servers_on = Counter(map(layout.node_of.__getitem__, roles["ps"]))
    beside_chief = sum(servers_on[layout.node_of[rank]] for rank in roles.get("chief", ()))
    return sorted(servers_on.values(), reverse=True), beside_chief


def _spread_ranks(
    layout: Layout, free: Sequence[int], count: int, chief: Sequence[int]
) -> list[int]:
    """Returns `count` of the free ranks, spread over the nodes: the lowest ranks of each node.

    In every round each node gives one, as long as it has any; the chief's node comes last.
    """
    chiefs = {layout.node_of[rank] for rank in chief}
    ranks_on = defaultdict(list)
    for rank in free:
        ranks_on[layout.node_of[rank]].append(rank)
    nodes = sorted(ranks_on, key=lambda node: (node in chiefs, node))
    rounds = itertools.zip_longest(*map(ranks_on.__getitem__, nodes))
    places = (rank for ranks in rounds for rank in ranks if rank is not None)
    return sorted(itertools.islice(places, count))
