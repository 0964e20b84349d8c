"""The result of one check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination import named
from slurm_resolver.wording import shorten

OK = "ok"
WARNING = "warning"
FAILED = "failed"
SKIPPED = "skipped"
_FROM_GOOD_TO_BAD = (OK, SKIPPED, WARNING, FAILED)

_MAX_SHOWN = 4  # problems in one line; the number of the others follows


class Result(NamedTuple):
    """The id of a check, which never changes, its status, and a detail for people to read."""

    id: str
    status: str
    detail: str

    @property
    def is_bad(self) -> bool:
        """Whether there is something to do about it."""
        return self.status in (WARNING, FAILED)


def result_of(id: str, problems: Iterable[str], ok_detail: str, status: str = FAILED) -> Result:
    """Returns `status` with the first four problems, or OK where all of them are ''."""
    problems = [*filter(None, problems)]
    if not problems:
        return Result(id, OK, ok_detail)
    return Result(id, status, shorten(problems, _MAX_SHOWN, separator="; "))


def merge(by_rank: Mapping[int, Sequence[Any]], cluster: Cluster) -> dict[str, Result]:
    """Returns by id one result of all tasks, which names those with a bad one.

    Each task has made the same checks, in this order.
    """
    merged = {}
    for lists in zip(*by_rank.values()):
        of_tasks = dict(zip(by_rank, map(Result._make, lists)))
        worst = max(of_tasks.values(), key=lambda result: _FROM_GOOD_TO_BAD.index(result.status))
        if worst.is_bad:
            worst = result_of(
                worst.id,
                named(
                    {rank: result.detail for rank, result in of_tasks.items() if result.is_bad},
                    cluster.name_of,
                ),
                "",
                worst.status,
            )
        merged[worst.id] = worst
    return merged
