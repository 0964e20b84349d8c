"""Limits the size of the package and of its tests, for `make sizes`.

Size is counted in nodes of Python's syntax tree: no packing, formatting or deleted comment changes
it. Density is counted in nodes per line of a file, blank lines and comments included: a packed line
has many.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Limit(NamedTuple):
    """What a folder may have at most."""

    folder: str
    nodes: int
    average: float
    densest: float


# Every node has to be read by its maintainers: delete as much as you add, or say here why not.
# The densities may only fall.
LIMITS = [
    # The package should have 104,000 nodes: what has been added for the partition of steps, texts
    # and tensors with other numbers of rows, resuming, the files of callbacks, starts, the report
    # of the usage, types and steps on GPUs has to become smaller. Proof readers, who went through
    # the rules one by one, have found some forty faults since: their mends are 1,100 nodes.
    Limit("slurm_resolver", nodes=114_480, average=5.3, densest=8.0),
    # A regression test may be added without deleting another one.
    Limit("tests", nodes=134_450, average=5.3, densest=8.0),
]


def faults(limit: Limit) -> list[str]:
    """Prints the size of the folder, and returns what is above its limit."""
    nodes: dict[Path, int] = {}
    lines: dict[Path, int] = {}
    for path in (ROOT / limit.folder).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        nodes[path] = len(list(ast.walk(ast.parse(text))))
        lines[path] = max(len(text.splitlines()), 1)
    densest = max(nodes, key=lambda path: nodes[path] / lines[path])
    total = sum(nodes.values())
    sizes = {
        f"nodes in {limit.folder}": (total, limit.nodes),
        f"nodes per line in {limit.folder}": (total / sum(lines.values()), limit.average),
        f"nodes per line in {densest.relative_to(ROOT)}": (
            nodes[densest] / lines[densest],
            limit.densest,
        ),
    }
    for what, (size, most) in sizes.items():
        print(f"{size:,.2f} {what}, at most {most:,}")
    return [what for what, (size, most) in sizes.items() if size > most]


if __name__ == "__main__":
    found = [fault for limit in LIMITS for fault in faults(limit)]
    for fault in found:
        print(f"too much: {fault}: give each thought its own line, or delete", file=sys.stderr)
    sys.exit(bool(found))
