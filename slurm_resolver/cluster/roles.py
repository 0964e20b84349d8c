"""The job of each rank, and its index in the job.

TensorFlow's strategies know the jobs chief, worker, ps and evaluator only, with at most one chief
and one evaluator (``tf.distribute``, multi_worker_util). Its servers take any other name as well.
Those of a tf.data service are in `slurm_resolver.cluster.data_service`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import (
    Collection,
    Dict,
    Iterator,
    List,
    Literal,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from slurm_resolver.cluster.data_service import DATA_JOBS
from slurm_resolver.cluster.job_counts import job_counts
from slurm_resolver.cluster.job_names import JOB_NAMES
from slurm_resolver.cluster.layout import Layout
from slurm_resolver.cluster.ring_order import order_by_ring
from slurm_resolver.cluster.spread import ranks_of_fullest_nodes, servers_per_node, spread_ranks
from slurm_resolver.errors import JobsError

Placement = Literal["spread", "rank"]
WorkerOrder = Literal["ring", "rank"]
PLACEMENTS: Tuple[Placement, ...] = ("spread", "rank")
WORKER_ORDERS: Tuple[WorkerOrder, ...] = ("ring", "rank")


class Roles(NamedTuple):
    """The ranks of each job, ``ranks[job][index]``. No job is without ranks."""

    ranks: Mapping[str, Sequence[int]]

    @property
    def job_of(self) -> List[str]:
        """By rank, the name of its job."""
        job_of = [""] * sum(map(len, self.ranks.values()))
        for job, ranks in self.ranks.items():
            for rank in ranks:
                job_of[rank] = job
        return job_of

    @property
    def index_of(self) -> List[int]:
        """By rank, its index in the job."""
        index_of = [0] * sum(map(len, self.ranks.values()))
        for ranks in self.ranks.values():
            for index, rank in enumerate(ranks):
                index_of[rank] = index
        return index_of

    def find_job_and_index(self, rank: int) -> Tuple[str, int]:
        """Returns the job and the index of one rank; for many ranks `job_of` is faster."""
        job = self.find_job(rank)
        return job, self.ranks[job].index(rank)

    def find_job(self, rank: int) -> str:
        """Returns the job of one rank; for many ranks `job_of` is faster."""
        *others, largest = sorted(self.ranks, key=lambda job: len(self.ranks[job]))
        return next((job for job in others if rank in self.ranks[job]), largest)


def assign_roles(
    layout: Layout,
    jobs: Optional[Mapping[str, int]] = None,
    placement: Placement = "spread",
    worker_order: WorkerOrder = "ring",
    het_groups: Optional[Mapping[str, int]] = None,
) -> Roles:
    """Assigns a job and an index to every rank of the layout.

    Args:
        layout: where the ranks run.
        jobs: number of tasks by job name. They sum to the tasks of the step; one may be -1, the
            rest. None makes every task a worker.
        placement: "rank" assigns ranks to jobs in alphabetical order of the job names, exactly as
            TensorFlow's own resolver. "spread" does the same if that spreads the parameter servers
            over the nodes as evenly as possible, and puts no more of them on the chief's node than
            necessary. Otherwise the chief gets the first rank, and the parameter servers the first
            free ranks of one node after the other, the chief's node last in every round. The other
            jobs get the remaining ranks in alphabetical order. The tasks of a tf.data service are
            taken off before, always from the node that has most tasks then.
        worker_order: "rank" numbers the workers by rank; "ring" so that TensorFlow's ring of
            collectives leaves every node once (`slurm_resolver.cluster.ring_order`).
        het_groups: by job name, the component of a heterogeneous step whose ranks the job gets.

    Raises:
        JobsError: for a name that TensorFlow does not take, a count that does not fit, a second
            chief, evaluator or dispatcher, a tf.data service that lacks a part.
    """
    _check_choice("placement", placement, PLACEMENTS)
    _check_choice("worker_order", worker_order, WORKER_ORDERS)
    counts = job_counts(jobs, layout.num_tasks)
    allowed_ranks = _ranks_of_chosen_components(layout, counts, het_groups or {}, jobs or ())
    spread = placement == "spread"
    data = [name for name in DATA_JOBS if name in counts] if spread else []
    others = sorted(counts.keys() - set(data))
    ranks = _assign_ranks(counts, allowed_ranks, layout, [*data, *others], data_apart=spread)
    if spread and not _servers_are_spread(layout, ranks, allowed_ranks.get("ps")):
        first = [name for name in ("chief", "ps") if name in counts]
        order = [*data, *first, *(name for name in others if name not in first)]
        ranks = _assign_ranks(
            counts, allowed_ranks, layout, order, data_apart=True, servers_apart=True
        )
    if worker_order == "ring" and "worker" in ranks:
        chief = ranks["chief"][0] if "chief" in ranks else None
        ranks["worker"] = order_by_ring(ranks["worker"], layout.node_of, chief)
    return Roles(ranks)


def _check_choice(argument: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        expected = " or ".join(map(repr, allowed))
        raise JobsError(f"{argument}={value!r}: expected {expected}.")


def _ranks_of_chosen_components(
    layout: Layout,
    counts: Mapping[str, int],
    het_groups: Mapping[str, int],
    names: Collection[str],
) -> Dict[str, range]:
    """Returns by name of each job in `het_groups` the ranks of its component."""
    component_ranks = {c.group: range(c.start, c.stop) for c in layout.components}
    allowed_ranks = {}
    needed: Dict[int, int] = {}
    for name, group in het_groups.items():
        if name not in JOB_NAMES and name not in names:
            known = ", ".join(dict.fromkeys([*JOB_NAMES, *names]))
            raise JobsError(f"het_groups={dict(het_groups)!r}: no job {name!r}; there are {known}.")
        if not component_ranks:
            raise JobsError(
                f"het_groups={dict(het_groups)!r}, but this step is not heterogeneous: leave "
                "het_groups out, or start with `srun … : …` in a heterogeneous allocation."
            )
        if group not in component_ranks:
            groups = ", ".join(map(str, component_ranks))
            raise JobsError(
                f"het_groups={dict(het_groups)!r}: the step has no component {group!r}; it has "
                f"{groups}."
            )
        if name in counts:
            allowed_ranks[name] = component_ranks[group]
            needed[group] = needed.get(group, 0) + counts[name]
            if needed[group] > len(component_ranks[group]):
                raise JobsError(
                    f"het_groups={dict(het_groups)!r} and jobs need {needed[group]} tasks of "
                    f"component {group}, which has {len(component_ranks[group])}. Give the jobs "
                    "fewer tasks there, or start more tasks in this component."
                )
    return allowed_ranks


def _assign_ranks(
    counts: Mapping[str, int],
    allowed_ranks: Mapping[str, range],
    layout: Layout,
    order: Sequence[str],
    *,
    data_apart: bool = False,
    servers_apart: bool = False,
) -> Dict[str, Sequence[int]]:
    """Returns the ranks of each job, ascending.

    Args:
        counts: the number of tasks by job.
        allowed_ranks: by job, the ranks that it may get; without an entry it may get all.
        layout: where the ranks run.
        order: the jobs; each gets its ranks in this order, but those with an entry in
            `allowed_ranks` before the others.
        data_apart: whether the tasks of a tf.data service leave the nodes with as many others each.
        servers_apart: whether the parameter servers are spread over the nodes.
    """
    num_tasks, node_of = layout.num_tasks, layout.node_of
    is_free = bytearray(b"\1") * num_tasks  # by rank
    ranks: Dict[str, Sequence[int]] = {}
    for name in sorted(order, key=lambda name: name not in allowed_ranks):  # stable: keeps `order`
        allowed = allowed_ranks.get(name, range(num_tasks))
        if name in DATA_JOBS and data_apart:
            free = _free_ranks(is_free, allowed)
            ranks[name] = ranks_of_fullest_nodes(node_of, free, counts[name])
        elif name == "ps" and servers_apart:
            free_ranks = list(_free_ranks(is_free, allowed))
            chief_node = node_of[ranks["chief"][0]] if "chief" in ranks else None
            ranks[name] = spread_ranks(node_of, free_ranks, counts[name], chief_node)
        else:
            ranks[name] = _lowest_free_ranks(is_free, allowed, counts[name])
        _mark_used(is_free, ranks[name])
    return ranks


def _free_ranks(is_free: bytearray, allowed: range) -> Iterator[int]:
    return itertools.compress(allowed, is_free[allowed.start : allowed.stop])


def _lowest_free_ranks(is_free: bytearray, allowed: range, count: int) -> Sequence[int]:
    start = is_free.find(1, allowed.start)
    if is_free.count(1, start, start + count) == count:  # almost always; a range needs no memory
        return range(start, start + count)
    return list(itertools.islice(_free_ranks(is_free, allowed), count))


def _mark_used(is_free: bytearray, ranks: Sequence[int]) -> None:
    if isinstance(ranks, range):
        is_free[ranks.start : ranks.stop] = bytes(len(ranks))
    else:
        for rank in ranks:
            is_free[rank] = 0


def _servers_are_spread(
    layout: Layout, ranks: Mapping[str, Sequence[int]], allowed: Optional[range]
) -> bool:
    """Whether the parameter servers are spread as evenly as possible, and away from the chief.

    They are spread evenly if no node has two servers more than another one that has a task for one
    more. `allowed` are the ranks that they may get; None is all.
    """
    servers = ranks.get("ps", ())
    if not servers:
        return True
    in_reach = layout.node_of
    if allowed is not None:
        in_reach = layout.node_of[allowed.start : allowed.stop]
    tasks_on = Counter(in_reach)
    for job in DATA_JOBS:
        for rank in ranks.get(job, ()):
            if allowed is None or rank in allowed:
                tasks_on[layout.node_of[rank]] -= 1
    chief_node = None
    if "chief" in ranks:
        chief_node = layout.node_of[ranks["chief"][0]]
        if allowed is None or ranks["chief"][0] in allowed:
            tasks_on[chief_node] -= 1
    servers_on = Counter(map(layout.node_of.__getitem__, servers))
    fewest = min(
        (servers_on[node] for node in tasks_on if servers_on[node] < tasks_on[node]), default=None
    )
    if fewest is not None and max(servers_on.values()) - fewest > 1:
        return False
    if chief_node is None:
        return True
    fewest_beside_chief = servers_per_node(tasks_on, len(servers), chief_node).get(chief_node, 0)
    return servers_on[chief_node] <= fewest_beside_chief
