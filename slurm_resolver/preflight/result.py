"""The result of one check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_resolver.wording import shorten

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


def result_of(id: str, problems: Sequence[str], ok_detail: str, status: str = WARNING) -> Result:
    """Returns `status` with the first four problems, or OK where all of them are ''."""
    problems = [*filter(None, problems)]
    if not problems:
        return Result(id, OK, ok_detail)
    return Result(id, status, shorten(problems, _MAX_SHOWN, separator="; "))
