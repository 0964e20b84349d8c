"""The names of jobs whose purpose is known, and names that look like one of them."""

from __future__ import annotations

from typing import Mapping

from slurm_resolver.cluster.data_service import DATA_JOBS
from slurm_resolver.errors import JobsError
from slurm_resolver.log import warn_once

JOB_NAMES = ("chief", "worker", "ps", "evaluator", *DATA_JOBS)
_ALIKE = 0.78  # difflib's ratio: "wroker" has 0.83 and is meant, "gpu_worker" has 0.75 and is not
_MISSPELT = (
    "job {0!r} is not {1!r}: to this resolver and TensorFlow's strategies it is one that they know "
    "nothing of. Write {1!r} if that is meant"
)


def warn_of_misspelling(name: str) -> None:
    """Warns once of a name that looks misspelt; it may be meant as it is."""
    meant = misspelt_job(name)
    if meant:
        warn_once(_MISSPELT.format(name, meant))


def misspelt_job(name: str) -> str:
    """Returns the job that is meant, as far as can be told, where a name looks misspelt; else ''.

    >>> misspelt_job("wroker")
    'worker'
    """
    if name in JOB_NAMES:
        return ""
    from difflib import get_close_matches  # few programs have a job with a name of their own

    return next(iter(get_close_matches(name.lower(), JOB_NAMES, 1, _ALIKE)), "")


def refuse_misspelt_jobs(jobs: Mapping[str, int]) -> None:
    """Raises JobsError where a name looks misspelt, for a check before the training."""
    for name in jobs:
        meant = misspelt_job(name)
        if meant:
            raise JobsError(f"jobs={dict(jobs)!r}: {_MISSPELT.format(name, meant)}.")
