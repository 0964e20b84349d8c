"""A process that does not answer is named after the grace, and lost after four times as long."""

from __future__ import annotations

from typing import Any

import pytest
from captured import Patch

from slurm_resolver.coordination import ServiceAddress, silence

GRACE = 30.0
ADDRESS = ServiceAddress("n0", 1, "n0", "42.0 start 0", 3, 0, True, GRACE)


class Watched:
    """What `Silence` says of one process, second by second; the other one always answers."""

    def __init__(self, patch: Patch) -> None:
        self.at = 0.0
        patch.setattr(silence, "monotonic", lambda: self.at)
        self.silence = silence.Silence[str](ADDRESS)
        self.said: list[str] = []

    def run(self, seconds: int, answers: bool) -> None:
        for _ in range(seconds):
            self.at += 1
            self.silence.await_answer("the other")
            self.silence.heard("the other")
            self.silence.await_answer("it")
            if answers and self.silence.heard("it"):
                self.said.append("answers again")
            self.said += [f"{who} after {self.silence.now:.0f}" for who in self.silence.find()]
            if self.silence.silent_for(ADDRESS.silence):
                self.said.append("lost")
                return

    def stop(self, seconds: int) -> None:
        """Stops the process that watches."""
        self.at += seconds


# Seconds for which it answers, is silent (negative), or for which the watching process is stopped.
RULE: dict[str, tuple[list[Any], list[str]]] = {
    "it answers": ([500], []),
    "silent for less than the grace": ([9, -29, 9, -29, 9], []),
    "silent for 40 s": ([9, -40, 9], ["it after 40", "answers again"]),
    "silent for 119 s": ([-119, 9], ["it after 31", "answers again"]),
    "silent twice": (
        [-40, 1, -40, 1],
        [
            "it after 31",
            "answers again",
            "it after 72",
            "answers again",
        ],
    ),
    "silent for 150 s": ([-150], ["it after 31", "lost"]),
    "the watching process is stopped": ([9, "900", 9], []),
    "both are stopped": ([9, -20, "900", -5, 9], []),
}


@pytest.mark.parametrize("case", RULE)
def test_who_is_silent(case: str, monkeypatch: Patch) -> None:
    watched = Watched(monkeypatch)
    events, said = RULE[case]
    for event in events:
        if isinstance(event, str):
            watched.stop(int(event))
        else:
            watched.run(abs(event), answers=event > 0)
    assert watched.said == said
