"""How many tasks each job has, and their ranks, in the order of the tasks' indices in it."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from slurm_resolver.cluster.layout import Layout, Ranks
from slurm_resolver.cluster.options import ClusterOptions, JobCounts
from slurm_resolver.cluster.ring_order import order_by_ring
from slurm_resolver.errors import JobsError
from slurm_resolver.slurm.whole_number import whole_number
from slurm_resolver.wording import counted

Roles = Mapping[str, Ranks]  # ``roles[job][index]`` is a rank; no job is without ranks


def job_counts(jobs: JobCounts | None, num_tasks: int) -> JobCounts:
    """Returns the number of tasks of each job that has any, with -1 replaced by the rest.

    Args:
        jobs: tasks by job, or -1; None makes all workers.
        num_tasks: the tasks of the step.

    Raises:
        JobsError: for a name or count that is not valid, or counts that do not fit the step.
            TensorFlow's strategies accept at most one chief and one evaluator (``tf.distribute``,
            multi_worker_util).
    """
    if jobs is None:
        return {"worker": num_tasks}
    counts = dict(jobs) if isinstance(jobs, Mapping) else {}
    rest = [name for name, count in counts.items() if count == -1]
    if rest and None not in (whole_number(count, least=-1) for count in counts.values()):
        counts[rest[0]] = num_tasks - sum(counts.values()) - 1
    wrong = [
        f"{name!r} would have {count!r}"
        for name, count in counts.items()
        if whole_number(count) is None  # also a second -1
        # With any other name TensorFlow's server aborts (tensorflow/core/util, IsJobName).
        or not (isinstance(name, str) and re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name))
        or (name in ("chief", "evaluator") and count > 1)
    ]
    if not wrong and sum(counts.values()) == num_tasks:
        return {name: count for name, count in counts.items() if count}
    fault = wrong[0] if wrong else f"they sum to {sum(counts.values())}"
    raise JobsError(
        f"jobs={jobs!r} do not fit the {num_tasks} tasks of the job step (SLURM_STEP_NUM_TASKS): "
        f"{fault}. Expected counts by job name, such as {{'ps': 1, 'worker': -1}}, that sum to "
        "these tasks: names of letters, digits and underscores that begin with a letter; whole "
        "numbers, 0 or more, of which one may be -1, for the rest; at most one chief and one "
        "evaluator. Change jobs or the number of tasks."
    )


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
    groups = options.het_groups or {}
    spreads = options.placement == "spread" and "ps" in counts
    first = ("chief", "ps") if spreads else ()
    roles: dict[str, Ranks] = {}
    free: Ranks = range(layout.num_tasks)
    # The groups of jobs without tasks have to exist as well.
    jobs = {**dict.fromkeys(groups, 0), **counts}
    for job in sorted(jobs, key=lambda job: (job not in groups, job not in first, job)):
        count = jobs[job]
        candidates = free
        if job in groups:
            nodes_of = {component.group: {*component.nodes} for component in layout.components}
            names = nodes_of.get(groups[job], ())
            candidates = [rank for rank in free if layout.nodes[layout.node_of[rank]] in names]
            if not names or count > len(candidates):
                raise JobsError(
                    f"het_groups={groups!r}: {job!r} needs {counted(count, 'task')} of component "
                    f"{groups[job]!r}, which has {len(candidates)} free ones; the components of "
                    f"this step are {[*nodes_of]}. Give the jobs fewer tasks there, or start more "
                    "tasks in this component."
                )
        if not count:
            continue
        if spreads and job == "ps":
            # In every round each node gives its lowest free rank, the chief's node last.
            chiefs = {layout.node_of[rank] for rank in roles.get("chief", ())}
            ranks_on: dict[int, list[int]] = defaultdict(list)
            for rank in candidates:
                ranks_on[layout.node_of[rank]].append(rank)
            nodes = sorted(ranks_on, key=chiefs.__contains__)  # else in the order of their ranks
            rounds = itertools.zip_longest(*map(ranks_on.__getitem__, nodes))
            places = (rank for ranks in rounds for rank in ranks if rank is not None)
            candidates = [*itertools.islice(places, count)]
        if candidates is free:
            roles[job] = free[:count]
            free = free[count:]
        else:
            roles[job] = sorted(candidates[:count])
            free = list(itertools.filterfalse(set(roles[job]).__contains__, free))
    if options.worker_order == "ring" and "worker" in roles:
        roles["worker"] = order_by_ring(roles["worker"], layout.node_of, roles.get("chief", ()))
    return roles


def ranks_of(roles: Roles, jobs: Iterable[str]) -> Ranks:
    """Returns the ranks that have these jobs, one job after the other, by index."""
    return [rank for job in jobs for rank in roles.get(job, ())]
