"""The result of one check."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination import named

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
    found = [problem for problem in problems if problem]
    if not found:
        return Result(id, OK, ok_detail)
    if len(found) > _MAX_SHOWN:
        found[_MAX_SHOWN:] = [f"and {len(found) - _MAX_SHOWN} more"]
    return Result(id, status, "; ".join(found))


def merge(by_rank: Mapping[int, Sequence[Any]], cluster: Cluster) -> dict[str, Result]:
    """Returns one result for each id, from those of all tasks; it names the tasks with bad ones."""
    by_id: dict[str, dict[int, Result]] = defaultdict(dict)
    for rank, results in by_rank.items():
        for result in map(Result._make, results):
            by_id[result.id][rank] = result
    merged = {}
    for id, of_tasks in by_id.items():
        worst = max(of_tasks.values(), key=lambda one: _FROM_GOOD_TO_BAD.index(one.status))
        if worst.is_bad:
            bad = {rank: result.detail for rank, result in of_tasks.items() if result.is_bad}
            worst = result_of(
                id,
                named(bad, cluster.name_of),
                "",
                worst.status,
            )
        merged[id] = worst
    return merged
