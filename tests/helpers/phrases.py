"""Messages of known kinds in the words of other versions, programs and languages."""

from __future__ import annotations

from typing import NamedTuple

from folders import DATA
from kinds import Strings

_ARROW = "=> "  # before what `explain` tells


class Phrase(NamedTuple):
    """The lines of a log, and what is told of it: its first failure, its causes, or no failure."""

    log: Strings
    told: Strings


def phrases() -> dict[str, Phrase]:
    """Returns the logs by their titles."""
    found = {}
    for path in sorted((DATA / "phrases").glob("*.txt")):
        text = path.read_text(encoding="utf-8").replace("␛", "\x1b")
        for block in text.split("\n----\n"):
            title, *lines = block.splitlines()
            told = [line[len(_ARROW) :] for line in lines if line.startswith(_ARROW)]
            log = [line for line in lines if not line.startswith(_ARROW)]
            found[f"{path.stem}: {title}"] = Phrase(log, told)
    return found
