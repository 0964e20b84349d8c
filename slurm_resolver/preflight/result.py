"""The result of one check."""

from __future__ import annotations

from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.wording import shorten

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"

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
    more = [f"and {len(found) - _MAX_SHOWN} more"] if len(found) > _MAX_SHOWN else []
    detail = "; ".join([*found[:_MAX_SHOWN], *more])
    return Result(id, status, detail) if found else Result(id, OK, ok_detail)


def merge(own: Result, others: Mapping[int, Optional[Sequence[str]]], cluster: Cluster) -> Result:
    """Returns one result for those of all tasks, by rank; None is one that is not bad.

    Equal problems appear once. Without any problem it is this task's own result.
    """
    bad = {rank: Result(*one) for rank, one in others.items() if one is not None}
    ranks_by_problem: Dict[str, List[int]] = {}
    for rank, one in bad.items():
        ranks_by_problem.setdefault(one.detail, []).append(rank)
    problems = [f"{names_of(ranks, cluster)}: {text}" for text, ranks in ranks_by_problem.items()]
    status = FAILED if any(one.status == FAILED for one in bad.values()) else WARNING
    return result_of(own.id, problems, own.detail, status) if bad else own


def names_of(ranks: List[int], cluster: Cluster) -> str:
    """Returns the names of the first three tasks, and how many more there are."""
    return shorten([cluster.name_of(rank) for rank in ranks], 3)
