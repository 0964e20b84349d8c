"""The jobs of a cluster: their names, and how many tasks each has.

TensorFlow's strategies know the jobs chief, worker, ps and evaluator only, with at most one chief
and one evaluator (``tf.distribute``, multi_worker_util). Its servers take any other name as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from slurm_resolver.errors import JobsError
from slurm_resolver.log import warn_once
from slurm_resolver.whole_number import whole_number
from slurm_resolver.wording import counted

JobCounts = Mapping[str, int]  # the number of tasks of each job
JOB_NAMES = ("chief", "worker", "ps", "evaluator")


def job_counts(
    jobs: JobCounts | None,
    num_tasks: int,
    source: str = "the job step (SLURM_STEP_NUM_TASKS) has",
) -> dict[str, int]:
    """Returns the number of tasks of each job that has any, with -1 replaced by the rest.

    Args:
        jobs: tasks by job, or -1; None makes all workers.
        num_tasks: the tasks of the step.
        source: for messages, what has `num_tasks` tasks.

    Raises:
        JobsError: for a name or count that is not valid, or counts that do not fit the step.
    """
    if jobs is None:
        return {"worker": num_tasks}
    if not isinstance(jobs, Mapping):
        raise JobsError(
            f"jobs={jobs!r}: expected counts by job name, such as {{'ps': 1, 'worker': -1}}."
        )
    given = f"jobs={dict(jobs)!r}"
    counts = {}
    for name, count in jobs.items():
        # With any other name TensorFlow's server aborts (tensorflow/core/util, IsJobName).
        if not isinstance(name, str) or not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name):
            raise JobsError(
                f"{given}: TensorFlow does not accept the job name {name!r}; expected a letter, "
                "and then letters, digits and underscores."
            )
        number = whole_number(count, least=-1)
        if number is None:
            raise JobsError(
                f"{given}: {name} has {count!r} tasks; expected a whole number, 0 or more, or -1 "
                "for the rest of the step."
            )
        counts[name] = number
    rest = [name for name, count in counts.items() if count == -1]
    if len(rest) > 1:
        raise JobsError(
            f"{given}: {' and '.join(rest)} have -1, the rest; expected at most one -1."
        )
    total = sum(counts.values()) + len(rest)  # without the -1
    if rest:
        counts[rest[0]] = num_tasks - total
    if total > num_tasks or (not rest and total != num_tasks):
        needed = counted(total, "task") + (" or more" if rest else "")
        start = f", or change the number of tasks to {total}" if total else ""
        raise JobsError(
            f"{given} need {needed}, but {source} {num_tasks}. Change jobs or let one job take "
            f"the rest with -1{start}."
        )
    for name in ("chief", "evaluator"):
        if counts.get(name, 0) > 1:
            raise JobsError(
                f"{given}: {counts[name]} tasks of job {name}; TensorFlow accepts at most one. "
                "Make the others workers."
            )
    for misspelt in _misspelt(counts):
        warn_once(misspelt)
    return {name: count for name, count in counts.items() if count}


def refuse_misspelt_jobs(jobs: JobCounts) -> None:
    """Raises JobsError for a name that looks misspelt, in a check before the training."""
    for misspelt in _misspelt(jobs):
        raise JobsError(f"jobs={dict(jobs)!r}: {misspelt}.")


def _misspelt(jobs: Iterable[str]) -> Iterator[str]:
    """Yields a message about each name that looks misspelt."""
    for name in jobs:
        if name in JOB_NAMES:
            continue
        from difflib import get_close_matches  # few programs have a job with a name of their own

        # By difflib's ratio "wroker" (0.83) is meant, and "gpu_worker" (0.75) is not.
        for meant in get_close_matches(name.lower(), JOB_NAMES, n=1, cutoff=0.78):
            yield (
                f"job {name!r} is not {meant!r}: this resolver and TensorFlow's strategies do not "
                f"know it. Write {meant!r} if that is what you mean"
            )
