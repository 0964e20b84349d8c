"""How many tasks each job has: what the user asks for, in a step of so many tasks."""

from __future__ import annotations

import re
from numbers import Integral
from typing import Dict, Mapping, Optional

from slurm_resolver.cluster.data_service import DISPATCHER, check_data_jobs
from slurm_resolver.cluster.job_names import warn_of_misspelling
from slurm_resolver.errors import JobsError
from slurm_resolver.wording import counted

_SINGLE_JOBS = ("chief", "evaluator", DISPATCHER)
# With any other name TensorFlow's server aborts the process (tensorflow/core/util, IsJobName).
_JOB_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_STEP_HAS = "the job step has {tasks} (SLURM_STEP_NUM_TASKS)"
_START_MORE = "start with srun -n {needed}"


def job_counts(
    jobs: Optional[Mapping[str, int]],
    num_tasks: int,
    told_by: str = _STEP_HAS,
    remedy: str = _START_MORE,
) -> Dict[str, int]:
    """Returns the number of tasks of each job that has any, with -1 replaced by the rest.

    Args:
        jobs: tasks by job, or -1; None makes all workers.
        num_tasks: the tasks of the step.
        told_by: for messages, what tells how many there are, with ``{tasks}``.
        remedy: for messages, how to have as many as the jobs need, ``{needed}``.

    Raises:
        JobsError: for a name that TensorFlow does not take, a count that is not a number, or counts
            that do not sum to the tasks of the step.
    """
    if jobs is None:
        return {"worker": num_tasks}
    if not isinstance(jobs, Mapping):
        raise JobsError(
            f"jobs={jobs!r}: expected counts by job name, such as {{'ps': 1, 'worker': -1}}."
        )
    for name, count in jobs.items():
        if not isinstance(name, str) or _JOB_NAME.fullmatch(name) is None:
            raise JobsError(
                f"jobs={dict(jobs)!r}: TensorFlow takes no job {name!r}; expected a letter, and "
                "then letters, digits and underscores."
            )
        if isinstance(count, bool) or not isinstance(count, Integral) or count < -1:
            raise JobsError(
                f"jobs={dict(jobs)!r}: {name} has {count!r} tasks; expected a whole number, 0 or "
                "more, or -1 for the rest of the step."
            )
    rest = [name for name, count in jobs.items() if count == -1]
    if len(rest) > 1:
        raise JobsError(
            f"jobs={dict(jobs)!r}: {' and '.join(rest)} both have -1, the rest; expected at "
            "most one -1."
        )
    counts = {name: int(count) for name, count in jobs.items()}
    total = sum(count for count in jobs.values() if count != -1)
    if rest:
        counts[rest[0]] = num_tasks - total
    if (rest and total > num_tasks) or (not rest and total != num_tasks):
        needed = counted(total, "task") + (" or more" if rest else "")
        raise JobsError(
            f"jobs={dict(jobs)!r} need {needed}, but {told_by.format(tasks=num_tasks)}. Change "
            f"jobs, let one job take the rest with -1, or {remedy.format(needed=total)}."
        )
    for name in _SINGLE_JOBS:
        if counts.get(name, 0) > 1:
            raise JobsError(
                f"jobs={dict(jobs)!r}: {counts[name]} tasks of job {name}; TensorFlow takes at "
                f"most one. Make the others workers."
            )
    check_data_jobs(counts, jobs)
    for name in counts:
        warn_of_misspelling(name)
    return {name: count for name, count in counts.items() if count}
