"""A process that does not answer is named after the grace, and lost after four times as long."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from captured import Patch

from slurm_resolver.coordination import ServiceAddress, silence
from slurm_resolver.coordination.tasks import Link, Tasks

GRACE = 30.0
ADDRESS = ServiceAddress("n0", 1, "n0", "42.0 start 0", 3, 0, True, GRACE)

# By what a process does not answer for, or its watcher is stopped for: whether it is silent, lost.
RULE = {
    "silent 29": (False, False),
    "silent 31": (True, False),
    "silent 119": (True, False),
    "silent 121": (True, True),
    "stopped 900": (False, False),
    "silent 20, stopped 900, silent 5": (False, False),
}


@pytest.mark.parametrize("events", RULE)
def test_who_is_silent(events: str, monkeypatch: Patch) -> None:
    at = 0.0
    monkeypatch.setattr(silence, "monotonic", lambda: at)
    tasks = Tasks(ADDRESS, str)
    tasks.links[1] = Link(1, "71 x", writer=Mock())
    tasks.links[2] = Link(2, "72 x")  # its connection has failed
    for event in events.split(", "):
        does, seconds = event.split()
        for _ in range(int(seconds)):
            at += 1
            if does == "silent":
                tasks.clock.tick()
    found = [tasks.silent_for(limit) for limit in (GRACE, ADDRESS.silence)]
    assert found == [[1] if is_silent else [] for is_silent in RULE[events]]


def test_the_task_of_the_service_gets_a_message_last() -> None:
    """What it then does may hold the interpreter, in which the service sends."""
    order: list[int] = []
    tasks = Tasks(ADDRESS, str)
    for rank in (2, ADDRESS.rank, 1):  # a slow look-up lets another task connect before it
        writer = Mock(is_closing=lambda: False, write=lambda line, rank=rank: order.append(rank))
        tasks.links[rank] = Link(rank, "71 x", writer)
    tasks.send(None, {"over": None})
    assert order == [2, 1, ADDRESS.rank]
