"""The result of one check."""

from __future__ import annotations

from typing import List, NamedTuple, Sequence

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"

_MAX_SHOWN = 4  # problems in one line; the number of the others follows


class Result(NamedTuple):
    """The id of a check, which never changes, its status, and a detail for people to read."""

    id: str
    status: str
    detail: str


def result_of(id: str, problems: Sequence[str], ok_detail: str, status: str = FAILED) -> Result:
    """Returns OK with `ok_detail` if there are no problems, else `status` with the first four."""
    if not problems:
        return Result(id, OK, ok_detail)
    more: List[str] = []
    if len(problems) > _MAX_SHOWN:
        more = [f"and {len(problems) - _MAX_SHOWN} more"]
    return Result(id, status, "; ".join([*problems[:_MAX_SHOWN], *more]))
