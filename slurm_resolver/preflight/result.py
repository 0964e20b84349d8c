"""The result of one check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.start.ready import named

OK = "ok"
WARNING = "warning"
FAILED = "failed"
SKIPPED = "skipped"

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


def merge(own: Result, notes: Mapping[int, Any], cluster: Cluster) -> Result:
    """Returns one result of all tasks, whose notes have their bad results by id.

    Without a bad one it is this task's own result.
    """
    bad = {
        rank: Result(*note["bad"][own.id]) for rank, note in notes.items() if own.id in note["bad"]
    }
    if not bad:
        return own
    return result_of(
        own.id,
        named({rank: one.detail for rank, one in bad.items()}, cluster),
        own.detail,
        FAILED if any(one.status == FAILED for one in bad.values()) else WARNING,
    )
