"""All programs of this folder, by their names."""

from __future__ import annotations

from fnmatch import fnmatch
from importlib import import_module

from keras_programs.common import PROGRAMS
from kinds import Strings

EACH = "each_"

# Each module registers its programs.
for _module in ("losses", "steps", "data", "workflows", "sweep"):
    import_module(f"keras_programs.{_module}")


def matching(patterns: Strings) -> Strings:
    """Returns the names of the programs that match any of these patterns, in order.

    Those of each class of Keras match only patterns that begin as their names do.
    """
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in PROGRAMS):
            raise LookupError(f"no program {pattern}")
    return [
        name
        for name in PROGRAMS
        if any(
            fnmatch(name, pattern) and pattern.startswith(EACH) >= name.startswith(EACH)
            for pattern in patterns
        )
    ]
