"""Lines that this package prints for people and `supervise` reads: their writers and readers.

`explain` reads those of `slurm-resolver check` as well: `check-failed` in messages.ini.
"""

from __future__ import annotations

import re

_RESUMES = "training resumes from "
_SLOWLY = "times as slowly"
_WARNING = "warning: "
_NAMES_NODES = re.compile(rf"(?: *\d+: )?(?:presence +failed |{_WARNING}\S+ \d+ \()")
_NODE = re.compile(rf"\(rank \d+ on (\S+)\)(?: (\w+ [\d.]+ {_SLOWLY}))?")


def checked(id: str, status: str, detail: str) -> str:
    """Returns the line of a check and its result, in columns."""
    return f"{id:10}  {status:7}  {detail}"


def slow_task(name: str, ratio: float) -> str:
    """Returns what is wrong with a task that needs `ratio` times as long as the median."""
    return f"{name} computes {ratio:.1f} {_SLOWLY} as the median task"


def warning(text: str) -> str:
    """Returns the line of a warning about what was measured, such as a `slow_task`."""
    return f"{_WARNING}{text}"


def resumes(checkpoint: str, at: str) -> str:
    """Returns the line of a training that resumes from a checkpoint, saved `at` a step."""
    return f"{_RESUMES}{checkpoint}, saved {at}"


def find_bad_nodes(line: str) -> dict[str, str]:
    """Returns the nodes whose tasks are missing ('') or slow, with how slow they are."""
    return dict(_NODE.findall(line)) if _NAMES_NODES.match(line) else {}


def find_resumed(line: str) -> str:
    """Returns from what a training resumes, and when that was saved; or ''."""
    return line.partition(_RESUMES)[2].rstrip()
