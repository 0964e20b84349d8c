"""Host lists expanded and folded, against TensorFlow's, python-hostlist and ClusterShell.

CPU times, in turn in one run. A peer is compared only where its result is right: the same names in
the same order, as `scontrol show hostnames` has them, and for a folded list one that expands to
them. Where it is not, the table says what it does.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from typing import Any, Callable, Dict, List, Tuple

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import ClusterShell.NodeSet
import hostlist
import report
from tensorflow.python.distribute.cluster_resolver import slurm_cluster_resolver

import slurm_resolver as sr

PEERS = ["TensorFlow", "python-hostlist", "ClusterShell"]
SLOW = 0.5  # seconds: what took as long runs only once, and not with more names

Work = Callable[[], Any]


def shapes(size: int) -> Dict[str, List[str]]:
    """Returns the host names that are compared, by what is special about them."""
    shuffled = [f"n{i}" for i in range(size)]
    random.Random(1).shuffle(shuffled)
    return {
        "in one range": [f"n{i}" for i in range(size)],
        "with zeros": [f"node{i:07d}" for i in range(size)],
        "1 of 6 missing": [f"n{i}" for i in range(size * 2) if i % 6][:size],
        "racks of 100": [f"rack{i // 100}-n{i % 100:02d}" for i in range(size)],
        "a name behind": [f"n{i}-ib0" for i in range(size)],
        "shuffled": shuffled,
        "not a range": [f"{chr(97 + i % 26)}x{i:x}y" for i in range(size)],
    }


def expansions(names: List[str]) -> Tuple[Work, Dict[str, Work]]:
    """Returns what expands the list that stands for these names: ours, and the peers'."""
    text = sr.compress_hostlist(names)
    return lambda: sr.expand_hostlist(text), {
        "TensorFlow": lambda: slurm_cluster_resolver.expand_hostlist(text),
        "python-hostlist": lambda: hostlist.expand_hostlist(text, allow_duplicates=True),
        "ClusterShell": lambda: ClusterShell.NodeSet.expand(text),
    }


def foldings(names: List[str]) -> Tuple[Work, Dict[str, Work]]:
    """Returns what folds the names into a list: ours, and the peers'; TensorFlow has none."""
    return lambda: sr.compress_hostlist(names), {
        "python-hostlist": lambda: hostlist.collect_hostlist(names),
        "ClusterShell": lambda: ClusterShell.NodeSet.fold(",".join(names)),
    }


def judge(result: Any, names: List[str]) -> str:
    """Returns what is wrong with a result: a list of names, or a folded text. "" if nothing is."""
    if isinstance(result, Exception):
        return type(result).__name__
    try:
        found = sr.expand_hostlist(result) if isinstance(result, str) else list(result)
    except sr.HostlistError:  # such as a range of more than 65,536 hosts
        return "Slurm refuses it"
    if found == names:
        return ""
    return "another order" if sorted(found) == sorted(names) else "other names"


def run(work: Work) -> Tuple[float, Any]:
    """Returns the CPU time that the work took, and its result or the error that it raised."""
    gc.collect()
    start = time.process_time()
    try:
        result = work()
    except Exception as error:
        result = error
    return time.process_time() - start, result


def compare(own: Work, peers: Dict[str, Work], names: List[str], slow: Dict[str, str]) -> List[str]:
    """Returns the cells of a row: what each peer takes, as a multiple of ours, or why not."""
    cells = dict(slow)
    taken: Dict[str, List[float]] = {"own": [run(own)[0]]}
    for name, peer in peers.items():
        if name in slow:
            continue
        seconds, result = run(peer)
        wrong = judge(result, names)
        del result
        if seconds > SLOW:
            slow[name] = f"took {seconds:.1f} s for {len(names):,}"
        if wrong:
            cells[name] = f"wrong: {wrong}"
        else:
            taken[name] = [seconds]
    for _ in range(4):
        for name in taken:
            if name not in slow:
                taken[name].append(run(own if name == "own" else peers[name])[0])
    assert judge(run(own)[1], names) == ""
    for name in taken:
        ratio = statistics.median(a / b for a, b in zip(taken[name], taken["own"]))
        cells.setdefault(name, f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}")
    milliseconds = f"{1000 * statistics.median(taken['own']):.1f}"
    return [*(cells.get(name, "has none") for name in PEERS), milliseconds]


def main() -> None:
    """Publishes a table for each direction and size."""
    parser = report.make_parser(__doc__)
    parser.add_argument("sizes", type=int, nargs="*", default=[100_000], metavar="NAMES")
    args = parser.parse_args()
    parts = []
    for direction, works in (("expand", expansions), ("fold", foldings)):
        slow: Dict[Tuple[str, str], str] = {}
        for size in args.sizes:
            rows = []
            for shape, names in shapes(size).items():
                known = {peer: why for (where, peer), why in slow.items() if where == shape}
                own, peers = works(names)
                rows.append((shape, *compare(own, peers, names, known)))
                slow.update({(shape, peer): why for peer, why in known.items()})
            parts.append(report.table([f"{direction} {size:,} names", *PEERS, "ours (ms)"], rows))
    report.publish("hostlists", "\n\n".join(parts), write=args.write)


if __name__ == "__main__":
    main()
