"""The ranks of each job, in the order of the tasks' indices in it."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

from slurm_resolver.cluster.jobs import JOB_NAMES, JobCounts
from slurm_resolver.cluster.layout import Layout, Ranks
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.ring_order import order_by_ring
from slurm_resolver.errors import JobsError

Roles = Mapping[str, Ranks]  # ``roles[job][index]`` is a rank; no job is without ranks


def assign_roles(layout: Layout, counts: JobCounts, options: ClusterOptions) -> Roles:
    """Assigns a job and an index to every rank of the layout.

    The jobs in `het_groups` come first and get only the ranks of their components. Of the others,
    the placement "rank" assigns ranks to jobs in alphabetical order of the job names, as
    TensorFlow's own resolver does. With "spread" the chief gets the first rank, and the parameter
    servers the first free ranks of one node after the other, the chief's node last in every round.
    The other jobs get the remaining ranks in alphabetical order.

    `counts` is the number of tasks of each job that has any. They sum to the tasks of the step.

    Raises:
        JobsError: for `het_groups` that do not fit.
    """
    allowed = _allowed_ranks(layout, counts, options)
    spreads = options.placement == "spread" and "ps" in counts
    first = ("chief", "ps") if spreads else ()
    roles: dict[str, Ranks] = {}
    free: Ranks = range(layout.num_tasks)
    for job in sorted(counts, key=lambda job: (job not in allowed, job not in first, job)):
        candidates = free
        if job in allowed:
            candidates = [rank for rank in free if rank in allowed[job]]
        if spreads and job == "ps":
            candidates = _spread_ranks(layout, candidates, counts[job], roles.get("chief", ()))
        roles[job] = candidates[: counts[job]]
        free = _without(free, roles[job])
    if options.worker_order == "ring" and "worker" in roles:
        roles["worker"] = order_by_ring(roles["worker"], layout.node_of, roles.get("chief", ()))
    return roles


def _without(free: Ranks, taken: Ranks) -> Ranks:
    if taken == free[: len(taken)]:
        return free[len(taken) :]
    return list(itertools.filterfalse(set(taken).__contains__, free))


def ranks_of(roles: Roles, jobs: Iterable[str]) -> Ranks:
    """Returns the ranks that have these jobs, one job after the other, by index."""
    return [rank for job in jobs for rank in roles.get(job, ())]


def _allowed_ranks(
    layout: Layout, counts: JobCounts, options: ClusterOptions
) -> Mapping[str, Collection[int]]:
    """Returns by name of each job in `het_groups` the ranks of its component."""
    allowed = {}
    names = dict.fromkeys([*JOB_NAMES, *(options.jobs or ())])
    needed: Counter[int] = Counter()
    for name, group in (options.het_groups or {}).items():
        needed[group] += counts.get(name, 0)
        ranks = {*layout.components.get(group, ())}
        if name not in names or not ranks or needed[group] > len(ranks):
            groups = ", ".join(map(str, layout.components)) or "none, as it is not heterogeneous"
            raise JobsError(
                f"het_groups={options.het_groups!r} and jobs need {needed[group]} tasks of "
                f"component {group!r} for {name!r}, but it has {len(ranks)}; the step has the jobs "
                f"{', '.join(names)} and the components {groups}. Give the jobs fewer tasks there, "
                "or start more tasks in this component."
            )
        allowed[name] = ranks
    return allowed


def _spread_ranks(layout: Layout, free: Ranks, count: int, chief: Ranks) -> Ranks:
    """Returns `count` of the free ranks, spread over the nodes: the lowest ranks of each node.

    In every round each node gives one, as long as it has any; the chief's node comes last.
    """
    chiefs = {layout.node_of[rank] for rank in chief}
    ranks_on = defaultdict(list)
    for rank in free:
        ranks_on[layout.node_of[rank]].append(rank)
    nodes = sorted(ranks_on, key=chiefs.__contains__)  # stable: else in the order of their ranks
    rounds = itertools.zip_longest(*map(ranks_on.__getitem__, nodes))
    places = (rank for ranks in rounds for rank in ranks if rank is not None)
    return sorted(itertools.islice(places, count))
