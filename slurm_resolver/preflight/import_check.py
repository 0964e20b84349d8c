"""Whether a node reads TensorFlow's files much more slowly than the others.

`import tensorflow` opens thousands of files, and no step begins before the slowest task has
imported it. On a file system that all nodes share, this can take minutes on a node with a fault.
The check reads the files of the modules, which takes a fifth of a second once the node has them in
its memory. It does not import them, as that would take several seconds on every node.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib import util
from math import ceil
from pathlib import Path
from statistics import median_low
from time import monotonic

from slurm_resolver.preflight.result import Result, result_of

_MOST_SECONDS = 10.0  # of reading; the other tasks wait for the result
_FAST_SECONDS = 1.0  # a shorter median counts as this: such differences delay nobody


def seconds_to_read() -> float:
    """Returns how long this task needs to read TensorFlow's modules, at most `_MOST_SECONDS`."""
    begin = monotonic()
    package = util.find_spec("tensorflow")
    with suppress(OSError):  # the import says what is wrong
        for folder in (package and package.submodule_search_locations) or ():
            for path in Path(folder, "python").rglob("*.py*"):
                path.read_bytes()
                if monotonic() - begin > _MOST_SECONDS:
                    break
    return monotonic() - begin


def check_imports(seconds_on: Mapping[str, float]) -> Result:
    """Returns the result for the nodes, by their names."""
    median = median_low(seconds_on.values())
    most = 3 * max(median, _FAST_SECONDS)
    return result_of(
        "imports",
        [
            f"{node} took {seconds:.1f} s to read TensorFlow's modules (median of the nodes: "
            f"{median:.1f} s), and all tasks will wait for its imports. If another check repeats "
            f"this, its network or file system is slow: leave it out with --exclude={node}"
            for node, seconds in seconds_on.items()
            if seconds > most
        ],
        f"half of the nodes or more read TensorFlow's modules within {ceil(median)} s",
    )
