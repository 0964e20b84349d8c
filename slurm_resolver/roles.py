"""Which job each rank plays: chief, worker, ps or evaluator, and its index in the job.

Job names are TensorFlow's (``tf.distribute``, multi_worker_util): at most one chief and one
evaluator, and nothing else but workers and parameter servers.
"""

from __future__ import annotations

import itertools
from numbers import Integral
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.errors import JobsError
from slurm_resolver.layout import Layout

JOB_NAMES = ("chief", "worker", "ps", "evaluator")
PLACEMENTS = ("spread", "rank")
WORKER_ORDERS = ("ring", "rank")
_SINGLE_JOBS = ("chief", "evaluator")


class Roles(NamedTuple):
    """By rank: the job's name, and the index in that job. Jobs without a task do not occur."""

    job_of: Sequence[str]
    index_of: Sequence[int]


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
            servers on distinct nodes, as evenly as can be; elsewhere the chief takes the first
            rank, the parameter servers the first free ranks of one node after the other, and the
            other jobs the remaining ranks in alphabetical order.
        worker_order: "ring" or "rank". Both number the workers by rank.
        het_groups: by job name the component of a heterogeneous step whose ranks the job takes.

    Raises:
        JobsError: for an unknown name, a count that does not fit, a second chief or evaluator.
    """
    _one_of("placement", placement, PLACEMENTS)
    _one_of("worker_order", worker_order, WORKER_ORDERS)
    counts = job_counts(jobs, layout.num_tasks)
    candidates = _candidates(layout, counts, het_groups or {})
    ranks = _deal(counts, candidates, layout.num_tasks, sorted(counts))
    if placement == "spread" and not _is_even(layout, ranks.get("ps", []), candidates.get("ps")):
        others = sorted(name for name in counts if name not in ("chief", "ps"))
        order = [*(name for name in ("chief", "ps") if name in counts), *others]
        ranks = _deal(counts, candidates, layout.num_tasks, order, spread=layout)
    job_of = [""] * layout.num_tasks
    index_of = [0] * layout.num_tasks
    for name, own in ranks.items():
        for index, rank in enumerate(own):
            job_of[rank] = name
            index_of[rank] = index
    return Roles(job_of, index_of)


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
) -> Dict[str, List[int]]:
    """Returns each job's ranks, ascending. Jobs bound to a component choose first."""
    free = bytearray(b"\1") * num_tasks
    dealt = {}
    for name in sorted(order, key=lambda name: name not in candidates):  # stable: keeps the order
        among = candidates.get(name, range(num_tasks))
        if name == "ps" and spread is not None:
            ranks = _spread(spread, [rank for rank in among if free[rank]], counts[name])
        else:
            ranks = _first(free, among, counts[name])
        for rank in ranks:
            free[rank] = 0
        dealt[name] = ranks
    return dealt


def _first(free: bytearray, among: range, count: int) -> List[int]:
    return list(itertools.islice(itertools.compress(among, free[among.start : among.stop]), count))


def _spread(layout: Layout, free: Sequence[int], count: int) -> List[int]:
    """One rank of each node in turn, the lowest first, until there are enough."""
    by_turn: List[Tuple[int, int, int]] = []
    turns = [0] * len(layout.nodes)
    for rank in free:
        node = layout.node_of[rank]
        by_turn.append((turns[node], node, rank))
        turns[node] += 1
    return sorted(rank for _, _, rank in sorted(by_turn)[:count])


def _is_even(layout: Layout, servers: Sequence[int], among: Optional[range]) -> bool:
    """Whether no node has two more parameter servers than a node that could take one of them."""
    if not servers:
        return True
    has = [0] * len(layout.nodes)
    for rank in servers:
        has[layout.node_of[rank]] += 1
    can = [0] * len(layout.nodes)
    for rank in among if among is not None else range(layout.num_tasks):
        can[layout.node_of[rank]] += 1
    able = [servers_there for servers_there, tasks in zip(has, can) if servers_there < tasks]
    return not able or max(has) - min(able) <= 1
