"""Reads lines of this package for `supervise`.

`explain` reads those of `slurm-resolver check` as well: `check-failed` in messages.ini.
"""

from __future__ import annotations

import re

# What `check` prints of tasks that are missing, and `check --collective` of slow ones.
_NAMES_NODES = re.compile(r"(?: *\d+: )?(?:presence +failed |warning: \S+ \d+ \()")
_NODE = re.compile(r"\(rank \d+ on (\S+)\)(?: (computes [\d.]+ times as slowly))?")


def find_bad_nodes(line: str) -> dict[str, str]:
    """Returns the nodes whose tasks are missing ('') or slow, with how slow they are."""
    return dict(_NODE.findall(line)) if _NAMES_NODES.match(line) else {}


def find_resumed(line: str) -> str:
    """Returns from what a training says that it resumes, and when that was saved; or ''."""
    return line.partition("training resumes from ")[2].rstrip()
