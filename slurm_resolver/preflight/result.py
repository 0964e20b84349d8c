"""How one check came out."""

from __future__ import annotations

from typing import List, NamedTuple, Sequence

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"

_SHOWN = 4  # problems named in one line; the number of the others follows


class Result(NamedTuple):
    """One check: its id, which is stable, how it came out, and what there is to say."""

    id: str
    status: str
    detail: str


def result_of(id: str, problems: Sequence[str], all_well: str, bad: str = FAILED) -> Result:
    """Returns a check's result: `all_well` without problems, else the first of them."""
    if not problems:
        return Result(id, OK, all_well)
    more: List[str] = []
    if len(problems) > _SHOWN:
        more = [f"and {len(problems) - _SHOWN} more"]
    return Result(id, bad, "; ".join([*problems[:_SHOWN], *more]))
