"""Which job each rank plays: chief, worker, ps or evaluator, and its index in the job.

Job names are TensorFlow's (``tf.distribute``, multi_worker_util): at most one chief and one
evaluator, and nothing else but workers and parameter servers.
"""

from __future__ import annotations

import itertools
from collections import Counter
from numbers import Integral
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.cluster.layout import Layout
from slurm_resolver.cluster.ring_order import order_by_ring
from slurm_resolver.errors import JobsError

JOB_NAMES = ("chief", "worker", "ps", "evaluator")
PLACEMENTS = ("spread", "rank")
WORKER_ORDERS = ("ring", "rank")
_SINGLE_JOBS = ("chief", "evaluator")


class Roles(NamedTuple):
    """By job the ranks that play it, in the order of their index. None of them is empty."""

    ranks: Mapping[str, Sequence[int]]

    @property
    def job_of(self) -> List[str]:
        """By rank the name of its job."""
        job_of = [""] * sum(map(len, self.ranks.values()))
        for job, own in self.ranks.items():
            for rank in own:
                job_of[rank] = job
        return job_of

    @property
    def index_of(self) -> List[int]:
        """By rank its index in the job."""
        index_of = [0] * sum(map(len, self.ranks.values()))
        for own in self.ranks.values():
            for index, rank in enumerate(own):
                index_of[rank] = index
        return index_of

    def of(self, rank: int) -> Tuple[str, int]:
        """Returns the job and the index of one rank, and looks at few of the others."""
        job = self.job(rank)
        return job, self.ranks[job].index(rank)

    def job(self, rank: int) -> str:
        """Returns the job of one rank."""
        *others, largest = sorted(self.ranks, key=lambda job: len(self.ranks[job]))
        return next((job for job in others if rank in self.ranks[job]), largest)


def assign_roles(
    layout: Layout,
    jobs: Optional[Mapping[str, int]] = None,
    placement: str = "spread",
    worker_order: str = "ring",
    het_groups: Optional[Mapping[str, int]] = None,
) -> Roles:
    """Gives every rank of the layout a job and an index.

    Args:
        layout: where the ranks run.
        jobs: counts by job name, summing to the tasks of the step; one may be -1, the rest. None
            makes every task a worker.
        placement: "rank" deals ranks to jobs in alphabetical order of the names, exactly as
            TensorFlow's own resolver. "spread" does the same wherever that leaves the parameter
            servers on distinct nodes, as evenly as can be, and no more of them beside the chief
            than have to be there; elsewhere the chief takes the first rank, the parameter servers
            the first free ranks of one node after the other, the chief's being the last of the
            nodes in each turn, and the other jobs the remaining ranks in alphabetical order.
        worker_order: "rank" numbers the workers by rank; "ring" so that TensorFlow's ring of
            collectives leaves every node once (`slurm_resolver.cluster.ring_order`).
        het_groups: by job name the component of a heterogeneous step whose ranks the job takes.

    Raises:
        JobsError: for an unknown name, a count that does not fit, a second chief or evaluator.
    """
    _one_of("placement", placement, PLACEMENTS)
    _one_of("worker_order", worker_order, WORKER_ORDERS)
    counts = job_counts(jobs, layout.num_tasks)
    candidates = _candidates(layout, counts, het_groups or {})
    ranks = _deal(counts, candidates, layout.num_tasks, sorted(counts))
    if placement == "spread" and not _is_spread(layout, ranks, candidates.get("ps")):
        others = sorted(name for name in counts if name not in ("chief", "ps"))
        order = [*(name for name in ("chief", "ps") if name in counts), *others]
        ranks = _deal(counts, candidates, layout.num_tasks, order, spread=layout)
    if worker_order == "ring" and "worker" in ranks:
        chief = ranks["chief"][0] if "chief" in ranks else None
        ranks["worker"] = order_by_ring(ranks["worker"], layout.node_of, chief)
    return Roles(ranks)


def job_counts(jobs: Optional[Mapping[str, int]], num_tasks: int) -> Dict[str, int]:
    """Returns the tasks of each job that has any, -1 replaced by the rest.

    Raises:
        JobsError: for an unknown name, a count that is no number, or counts that do not sum to
            the tasks of the step.
    """
    if jobs is None:
        return {"worker": num_tasks}
    if not isinstance(jobs, Mapping):
        raise JobsError(
            f"jobs={jobs!r}: expected counts by job name, such as {{'ps': 1, 'worker': -1}}."
        )
    for name, count in jobs.items():
        if name not in JOB_NAMES:
            known = ", ".join(JOB_NAMES)
            raise JobsError(f"jobs={dict(jobs)!r}: unknown job {name!r}; TensorFlow knows {known}.")
        if isinstance(count, bool) or not isinstance(count, Integral) or count < -1:
            raise JobsError(
                f"jobs={dict(jobs)!r}: {name} has {count!r} tasks; expected a whole number from 0 "
                "on, or -1 for the rest of the step."
            )
    rest = [name for name, count in jobs.items() if count == -1]
    if len(rest) > 1:
        raise JobsError(
            f"jobs={dict(jobs)!r}: {' and '.join(rest)} both take the rest (-1); expected one."
        )
    counts = {name: int(count) for name, count in jobs.items()}
    total = sum(count for count in jobs.values() if count != -1)
    if rest:
        counts[rest[0]] = num_tasks - total
    if (rest and total > num_tasks) or (not rest and total != num_tasks):
        raise JobsError(
            f"jobs={dict(jobs)!r} need {total} tasks{' or more' if rest else ''}, but the job step "
            f"has {num_tasks} (SLURM_STEP_NUM_TASKS). Change jobs, let one job take the rest with "
            f"-1, or start with srun -n {total}."
        )
    for name in _SINGLE_JOBS:
        if counts.get(name, 0) > 1:
            raise JobsError(
                f"jobs={dict(jobs)!r}: {counts[name]} tasks of job {name}; TensorFlow takes at "
                f"most one. Make the others workers."
            )
    return {name: count for name, count in counts.items() if count}


def _one_of(argument: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        expected = " or ".join(map(repr, allowed))
        raise JobsError(f"{argument}={value!r}: expected {expected}.")


def _candidates(
    layout: Layout, counts: Mapping[str, int], het_groups: Mapping[str, int]
) -> Dict[str, range]:
    """By name of a job that is bound to a component: that component's ranks."""
    spans = {span.group: range(span.first, span.last) for span in layout.components}
    candidates = {}
    wanted: Dict[int, int] = {}
    for name, group in het_groups.items():
        if name not in JOB_NAMES:
            known = ", ".join(JOB_NAMES)
            raise JobsError(f"het_groups={dict(het_groups)!r}: no job {name!r}; there are {known}.")
        if not spans:
            raise JobsError(
                f"het_groups={dict(het_groups)!r}, but this step is not heterogeneous: leave "
                "het_groups out, or start with `srun … : …` in a heterogeneous allocation."
            )
        if group not in spans:
            groups = ", ".join(map(str, spans))
            raise JobsError(
                f"het_groups={dict(het_groups)!r}: the step has no component {group!r}; it has "
                f"{groups}."
            )
        if name in counts:
            candidates[name] = spans[group]
            wanted[group] = wanted.get(group, 0) + counts[name]
            if wanted[group] > len(spans[group]):
                raise JobsError(
                    f"het_groups={dict(het_groups)!r} and jobs need {wanted[group]} tasks of "
                    f"component {group}, which has {len(spans[group])}."
                )
    return candidates


def _deal(
    counts: Mapping[str, int],
    candidates: Mapping[str, range],
    num_tasks: int,
    order: Sequence[str],
    spread: Optional[Layout] = None,
) -> Dict[str, Sequence[int]]:
    """Returns each job's ranks, ascending. Jobs bound to a component choose first."""
    free = bytearray(b"\1") * num_tasks
    dealt: Dict[str, Sequence[int]] = {}
    for name in sorted(order, key=lambda name: name not in candidates):  # stable: keeps the order
        among = candidates.get(name, range(num_tasks))
        if name == "ps" and spread is not None:
            left = itertools.compress(among, free[among.start : among.stop])
            chief = spread.node_of[dealt["chief"][0]] if "chief" in dealt else None
            dealt[name] = _spread(spread.node_of, list(left), counts[name], chief)
        else:
            dealt[name] = _first(free, among, counts[name])
        _take(free, dealt[name])
    return dealt


def _first(free: bytearray, among: range, count: int) -> Sequence[int]:
    start = free.find(1, among.start)
    if free.count(1, start, start + count) == count:  # as it mostly is: no list is needed
        return range(start, start + count)
    return list(itertools.islice(itertools.compress(among, free[among.start : among.stop]), count))


def _take(free: bytearray, ranks: Sequence[int]) -> None:
    if isinstance(ranks, range):
        free[ranks.start : ranks.stop] = bytes(len(ranks))
    else:
        for rank in ranks:
            free[rank] = 0


def _spread(
    node_of: Sequence[int], free: Sequence[int], count: int, chief: Optional[int]
) -> List[int]:
    """The first ranks of each node, as many as are its share."""
    left = _shares(Counter(map(node_of.__getitem__, free)), count, chief)
    ranks: List[int] = []
    for rank in free:
        if len(ranks) == count:
            break
        if left[node_of[rank]]:
            left[node_of[rank]] -= 1
            ranks.append(rank)
    return ranks


def _shares(room: Mapping[int, int], count: int, chief: Optional[int]) -> Dict[int, int]:
    """By node how many of `count` it takes: one of each node in turn that still has room.

    The chief's node comes last in every turn, so that it is the one to be passed over.
    """
    shares = dict.fromkeys(room, 0)
    nodes = sorted(room)
    if chief is not None and chief in room:
        nodes.remove(chief)
        nodes.append(chief)
    while count:
        nodes = [node for node in nodes if shares[node] < room[node]]
        for node in nodes[:count]:
            shares[node] += 1
        count -= len(nodes[:count])
    return shares


def _is_spread(layout: Layout, ranks: Mapping[str, Sequence[int]], among: Optional[range]) -> bool:
    """Whether the parameter servers are as even, and as far from the chief, as can be.

    They are even where no node has two more than another that could take one of them.
    """
    servers = ranks.get("ps", ())
    if not servers:
        return True
    room = Counter(layout.node_of if among is None else layout.node_of[among.start : among.stop])
    chief = None
    if "chief" in ranks:
        chief = layout.node_of[ranks["chief"][0]]
        if among is None or ranks["chief"][0] in among:
            room[chief] -= 1
    has = Counter(map(layout.node_of.__getitem__, servers))
    servers_on = {**dict.fromkeys(room, 0), **has}
    able = [own for own, tasks in zip(servers_on.values(), room.values()) if own < tasks]
    least = min(able, default=None)
    if least is not None and max(has.values()) - least > 1:
        return False
    return chief is None or has[chief] <= _shares(room, len(servers), chief).get(chief, 0)
