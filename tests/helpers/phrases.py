"""Messages of known kinds in the words of other versions, programs and languages."""

from __future__ import annotations

from folders import DATA
from kinds import Strings

_ARROW = "=> "  # before what `explain` tells


def _blocks() -> dict[str, Strings]:
    """Returns the lines of each log, with those of what is told, by its title."""
    blocks = {}
    for path in sorted((DATA / "phrases").glob("*.txt")):
        text = path.read_text(encoding="utf-8").replace("␛", "\x1b")
        for block in text.split("\n----\n"):
            title, *lines = block.splitlines()
            blocks[f"{path.stem}: {title}"] = lines
    return blocks


def logs_of_phrases() -> dict[str, Strings]:
    """Returns the lines of each log, by its title."""
    return {
        title: [line for line in lines if not line.startswith(_ARROW)]
        for title, lines in _blocks().items()
    }


def told_by_phrases() -> dict[str, Strings]:
    """Returns what is told of each log: its first failure, its causes, or that nothing failed."""
    return {
        title: [line[len(_ARROW) :] for line in lines if line.startswith(_ARROW)]
        for title, lines in _blocks().items()
    }
