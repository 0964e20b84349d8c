"""The jobs of a cluster: their names, and how many tasks each has.

TensorFlow's strategies know the jobs chief, worker, ps and evaluator only, with at most one chief
and one evaluator (``tf.distribute``, multi_worker_util). Its servers take any other name as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_resolver.errors import JobsError
from slurm_resolver.slurm.whole_number import whole_number
from slurm_resolver.wording import counted

JobCounts = Mapping[str, int]  # the number of tasks of each job
JOB_NAMES = ("chief", "worker", "ps", "evaluator")


def job_counts(jobs: JobCounts | None, num_tasks: int) -> JobCounts:
    """Returns the number of tasks of each job that has any, with -1 replaced by the rest.

    Args:
        jobs: tasks by job, or -1; None makes all workers.
        num_tasks: the tasks of the step.

    Raises:
        JobsError: for a name or count that is not valid, or counts that do not fit the step.
    """
    if jobs is None:
        return {"worker": num_tasks}
    counts = _give_rest(jobs, _read_counts(jobs), num_tasks)
    for name in ("chief", "evaluator"):
        if counts.get(name, 0) > 1:
            raise JobsError(
                f"jobs={jobs!r}: {counts[name]} tasks of job {name}; TensorFlow accepts at most "
                "one. Make the others workers."
            )
    return {name: count for name, count in counts.items() if count}


def _read_counts(jobs: JobCounts) -> JobCounts:
    """Returns the counts, of which one may be -1."""
    expected = (
        f"jobs={jobs!r}: expected counts by job name, such as {{'ps': 1, 'worker': -1}}: names of "
        "letters, digits and underscores that begin with a letter, and whole numbers, 0 or more, "
        "of which one may be -1, for the rest of the step"
    )
    if not isinstance(jobs, Mapping):
        raise JobsError(f"{expected}.")
    counts: dict[str, int] = {}
    for name, count in jobs.items():
        number = whole_number(count, least=-1)
        # With any other name TensorFlow's server aborts (tensorflow/core/util, IsJobName).
        is_name = isinstance(name, str) and re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name)
        if not is_name or number is None or (number == -1 and -1 in counts.values()):
            raise JobsError(f"{expected}; not {name!r} with {count!r} tasks.")
        counts[name] = number
    return counts


def _give_rest(jobs: JobCounts, counts: JobCounts, num_tasks: int) -> JobCounts:
    """Returns the counts, with -1 replaced by the number of tasks that the others leave."""
    rest = [name for name, count in counts.items() if count == -1]
    total = sum(counts.values()) + len(rest)  # without the -1
    if total > num_tasks or (not rest and total != num_tasks):
        needed = counted(total, "task") + (" or more" if rest else "")
        raise JobsError(
            f"jobs={jobs!r} need {needed}, but the job step (SLURM_STEP_NUM_TASKS) has "
            f"{num_tasks}. Change jobs or the number of tasks, or let one job take the rest with "
            "-1."
        )
    return {**counts, **dict.fromkeys(rest, num_tasks - total)}
