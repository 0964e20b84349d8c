"""Meetings of a few tasks, each a thread, on this machine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List

import pytest

import slurm_resolver as sr
from slurm_resolver.rendezvous import barrier
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.rendezvous.wire import LIMITS, Limits


def points(port: int, tasks: int) -> List[Rendezvous]:
    return [
        Rendezvous("127.0.0.1", port, "n1", "7.0", rank, is_host=rank == 1) for rank in range(tasks)
    ]


def meet(
    point: Rendezvous,
    note: Dict[str, Any],
    decide: Any,
    timeout: float,
    tasks: int = 3,
    limits: Limits = LIMITS,
) -> Dict[str, Any]:
    names = [f"rank {rank}" for rank in range(tasks)]
    return barrier.meet(point, "x", names, note, decide, timeout, limits)


def echo(notes: Dict[int, Any]) -> Dict[str, Any]:
    return {"said": [notes[rank]["says"] for rank in range(len(notes))]}


def come(
    points: List[Rendezvous],
    timeout: float = 20.0,
    decide: Any = echo,
    tasks: int = 3,
    limits: Limits = LIMITS,
) -> List[Callable[[], Dict[str, Any]]]:
    """Starts a meeting of these tasks; each result is the answer, or raises the error."""
    with ThreadPoolExecutor(len(points)) as pool:
        futures = [
            pool.submit(meet, point, {"says": point.rank * 10}, decide, timeout, tasks, limits)
            for point in points
        ]
    return [future.result for future in futures]


def errors(results: List[Callable[[], Dict[str, Any]]]) -> List[str]:
    found = []
    for result in results:
        with pytest.raises(sr.RendezvousError) as caught:
            result()
        found.append(str(caught.value))
    return found
