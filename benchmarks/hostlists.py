"""Measures how long it takes to expand and to fold host lists, compared with other packages.

The packages are TensorFlow, python-hostlist and ClusterShell. The times are CPU times, measured in
turn. A package is compared only if its result is right: an expanded list must have the names in the
order of `scontrol show hostnames`, and a folded list must expand to its names. Otherwise the table
says what is wrong.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from collections import defaultdict
from typing import Any, Callable

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import ClusterShell.NodeSet
import hostlist
import report
from tensorflow.python.distribute.cluster_resolver import slurm_cluster_resolver

import slurm_resolver as sr

OURS = "ours"
OTHERS = ["TensorFlow", "python-hostlist", "ClusterShell"]
SLOW = 0.5  # seconds: a slower package runs only once, and not with longer lists

Work = Callable[[], Any]


def host_lists(size: int) -> dict[str, list[str]]:
    """Returns lists of host names, by their special feature."""
    shuffled = [f"n{i}" for i in range(size)]
    random.Random(1).shuffle(shuffled)
    return {
        "in one range": [f"n{i}" for i in range(size)],
        "leading zeros": [f"node{i:07d}" for i in range(size)],
        "1 of 6 missing": [f"n{i}" for i in range(size * 2) if i % 6][:size],
        "racks of 100": [f"rack{i // 100}-n{i % 100:02d}" for i in range(size)],
        "with a suffix": [f"n{i}-ib0" for i in range(size)],
        "shuffled": shuffled,
        "without ranges": [f"{chr(97 + i % 26)}x{i:x}y" for i in range(size)],
    }


def expansions(names: list[str]) -> dict[str, Work]:
    """Returns the functions that expand these names' list, by package, ours first."""
    text = sr.compress_hostlist(names)
    return {
        OURS: lambda: sr.expand_hostlist(text),
        "TensorFlow": lambda: slurm_cluster_resolver.expand_hostlist(text),
        "python-hostlist": lambda: hostlist.expand_hostlist(text, allow_duplicates=True),
        "ClusterShell": lambda: ClusterShell.NodeSet.expand(text),
    }


def foldings(names: list[str]) -> dict[str, Work]:
    """Returns the functions that fold these names, by package, ours first. TensorFlow has none."""
    return {
        OURS: lambda: sr.compress_hostlist(names),
        "python-hostlist": lambda: hostlist.collect_hostlist(names),
        "ClusterShell": lambda: ClusterShell.NodeSet.fold(",".join(names)),
    }


def defect(result: Any, names: list[str]) -> str:
    """Returns what is wrong with a result, or "".

    The result is a list of names, a folded list, or an exception.
    """
    if isinstance(result, Exception):
        return type(result).__name__
    try:
        found = sr.expand_hostlist(result) if isinstance(result, str) else list(result)
    except sr.HostlistError:  # such as a range of more than 65,536 hosts
        return "Slurm refuses it"
    if found == names:
        return ""
    return "another order" if sorted(found) == sorted(names) else "other names"


def run(work: Work) -> tuple[float, Any]:
    """Returns the CPU time of the work, and its result or the exception that it raised."""
    gc.collect()
    start = time.process_time()
    try:
        result = work()
    except Exception as error:
        result = error
    return time.process_time() - start, result


def compare(works: dict[str, Work], names: list[str], slow: dict[str, str]) -> list[str]:
    """Returns the cells of a row: for each package the ratio to our time, or why there is none.

    Packages in `slow` are left out; those that are slow now are added to it.
    """
    cells = dict(slow)
    taken: dict[str, list[float]] = {}
    for name, work in works.items():
        if name in slow:
            continue
        seconds, result = run(work)
        wrong = defect(result, names)
        del result
        assert name != OURS or not wrong, wrong
        if seconds > SLOW and name != OURS:
            slow[name] = f"took {seconds:.1f} s for {len(names):,}"
        if wrong:
            cells[name] = f"wrong: {wrong}"
        else:
            taken[name] = [seconds]
    for _ in range(4):
        for name in taken:
            if name not in slow:
                taken[name].append(run(works[name])[0])
    for name, times in taken.items():
        ratio = statistics.median(other / own for other, own in zip(times, taken[OURS]))
        cells[name] = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
    milliseconds = f"{1000 * statistics.median(taken[OURS]):.1f}"
    return [*(cells.get(name, "has none") for name in OTHERS), milliseconds]


def main() -> None:
    """Publishes a table for each direction and size."""
    parser = report.make_parser(__doc__, counts=[100_000], of="names")
    args = parser.parse_args()
    parts = []
    for direction, works_of in (("expand", expansions), ("fold", foldings)):
        slow: dict[str, dict[str, str]] = defaultdict(dict)  # by kind of list, then by package
        for size in args.counts:
            rows = [
                (kind, *compare(works_of(names), names, slow[kind]))
                for kind, names in host_lists(size).items()
            ]
            headings = [f"{direction} {size:,} names", *OTHERS, f"{OURS} (ms)"]
            parts.append(report.table(headings, rows))
    report.publish("hostlists", "\n\n".join(parts), write=args.write)


if __name__ == "__main__":
    main()
