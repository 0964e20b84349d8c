"""Limits the size of the package and of its tests, for `make sizes`.

Size is counted in nodes of Python's syntax tree: no packing, formatting or deleted comment changes
it. Density is counted in nodes per line of a file, blank lines and comments included: a packed line
has many.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import List, NamedTuple

ROOT = Path(__file__).parents[1]


class Limit(NamedTuple):
    """What a folder may have at most."""

    folder: str
    nodes: int
    average: float
    densest: float


# Every node has to be read by its maintainers: delete as much as you add, or say here why not.
# The densities may only fall; the aim is 5.6 on average, and 8 in each module.
LIMITS = [
    Limit("slurm_resolver", nodes=100_000, average=6.5, densest=10.5),
    Limit("tests", nodes=110_000, average=6.7, densest=9.0),
]


class Module(NamedTuple):
    """The size of one file."""

    path: Path
    nodes: int
    lines: int

    @property
    def density(self) -> float:
        """Nodes per line; 0 for an empty file."""
        return self.nodes / max(self.lines, 1)


def measured(path: Path) -> Module:
    """Returns the size of this file."""
    text = path.read_text(encoding="utf-8")
    nodes = sum(1 for _ in ast.walk(ast.parse(text)))
    return Module(path.relative_to(ROOT), nodes, lines=len(text.splitlines()))


def faults(limit: Limit) -> List[str]:
    """Prints the size of the folder, and returns what is above its limit."""
    modules = [measured(path) for path in sorted((ROOT / limit.folder).rglob("*.py"))]
    nodes = sum(module.nodes for module in modules)
    average = nodes / sum(module.lines for module in modules)
    densest = max(modules, key=lambda module: module.density)
    print(
        f"{limit.folder}: {nodes:,} nodes in {len(modules)} files (at most {limit.nodes:,}), "
        f"{average:.2f} nodes per line (at most {limit.average:g}), "
        f"{densest.density:.2f} in {densest.path} (at most {limit.densest:g})"
    )
    found = []
    if nodes > limit.nodes:
        found.append(f"{limit.folder}: {nodes:,} nodes, expected at most {limit.nodes:,}")
    if average > limit.average:
        found.append(
            f"{limit.folder}: {average:.2f} nodes per line on average, expected at most "
            f"{limit.average:g}: give each thought its own line"
        )
    for module in modules:
        if module.density > limit.densest:
            found.append(
                f"{module.path}: {module.density:.2f} nodes per line, expected at most "
                f"{limit.densest:g}: give each thought its own line"
            )
    return found


if __name__ == "__main__":
    found = [fault for limit in LIMITS for fault in faults(limit)]
    for fault in found:
        print(fault, file=sys.stderr)
    sys.exit(bool(found))
