"""The jobs of a cluster: their names, and how many tasks each has.

TensorFlow's strategies know the jobs chief, worker, ps and evaluator only, with at most one chief
and one evaluator (``tf.distribute``, multi_worker_util). Its servers take any other name as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_resolver.errors import JobsError
from slurm_resolver.slurm.whole_number import whole_number

JobCounts = Mapping[str, int]  # the number of tasks of each job
JOB_NAMES = ("chief", "worker", "ps", "evaluator")
# With any other name TensorFlow's server aborts (tensorflow/core/util, IsJobName).
_NAME = re.compile("[A-Za-z][A-Za-z0-9_]*")


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
    counts = dict(jobs) if isinstance(jobs, Mapping) else {}
    rest = [name for name, count in counts.items() if count == -1]
    counts.update(dict.fromkeys(rest, 0))
    if None not in map(whole_number, counts.values()) and len(rest) <= 1:
        left = num_tasks - sum(counts.values())
        counts.update(dict.fromkeys(rest, left))
        if (
            (left >= 0 if rest else left == 0)
            and all(_NAME.fullmatch(str(name)) for name in counts)
            and max(counts.get("chief", 0), counts.get("evaluator", 0)) <= 1
        ):
            return {name: count for name, count in counts.items() if count}
    raise JobsError(
        f"jobs={jobs!r} do not fit the {num_tasks} tasks of the job step (SLURM_STEP_NUM_TASKS). "
        "Expected counts by job name, such as {'ps': 1, 'worker': -1}, that sum to these tasks: "
        "names of letters, digits and underscores that begin with a letter; whole numbers, 0 or "
        "more, of which one may be -1, for the rest; at most one chief and one evaluator. Change "
        "jobs or the number of tasks."
    )
