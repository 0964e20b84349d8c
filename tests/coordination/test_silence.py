"""A process that does not answer is named after the grace, and lost after four times as long."""

from __future__ import annotations

import pytest
from captured import Patch

from slurm_resolver.coordination import ServiceAddress, silence

GRACE = 30.0
ADDRESS = ServiceAddress("n0", 1, "n0", "42.0 start 0", 3, 0, True, GRACE)


# By what a process does, and for how many seconds: what is said of it. Another one always answers.
RULE = {
    "answers 500": "",
    "silent 29, answers 9, silent 29, answers 9": "",
    "answers 9, silent 119, answers 9": "named after 40, answers again",
    "silent 40, answers 1, silent 40": "named after 31, answers again, named after 72",
    "silent 150": "named after 31, lost",
    # the one who watches is stopped
    "answers 9, stopped 900, answers 9": "",
    "silent 20, stopped 900, silent 5": "",
}


@pytest.mark.parametrize("events", RULE)
def test_who_is_silent(events: str, monkeypatch: Patch) -> None:
    at = 0.0
    monkeypatch.setattr(silence, "monotonic", lambda: at)
    watched = silence.Silence(ADDRESS)
    said = []
    for event in events.split(", "):
        does, seconds = event.split()
        if does == "stopped":
            at += int(seconds)
            continue
        for _ in range(int(seconds)):
            at += 1
            for who in ("it", "the other"):
                watched.await_answer(who)
                if (does == "answers" or who != "it") and watched.heard(who):
                    said.append("answers again")
            said += [f"named after {watched.now:.0f}" for _ in watched.find()]
            if watched.silent_for(ADDRESS.silence):
                said.append("lost")
                break
    assert ", ".join(said) == RULE[events]
