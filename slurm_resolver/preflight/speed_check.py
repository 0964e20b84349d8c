"""How fast the nodes send and receive, and how soon they answer, against the step's median.

Each node measures to the next two. A slow node is slow with both, so that what it sends counts by
the faster of the two, and so does what it receives: nobody takes it for a fault of its neighbours.
There are no limits of its own, as networks differ: what counts is how far a node is behind the
median of all.
"""

from __future__ import annotations

import statistics
import time
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.preflight.network_check import first_ranks
from slurm_resolver.preflight.result import OK, SKIPPED, WARNING, Result
from slurm_resolver.rendezvous.gathering import Note
from slurm_resolver.rendezvous.probe import ask_rank, measure_bandwidth
from slurm_resolver.slurm.hostlist_compress import compress_hostlist

# How many times slower than the median a slow node is. On two CPUs with twenty busy processes the
# slowest of up to five good nodes was 4.1 and 2.7 times slower when it was measured once.
RATE_RATIO = 5.0
TRIP_RATIO = 10.0
MAX_REPEATS = 2  # of what seems slow: by then it is a node that is slow, and no moment
_PAUSE_SECONDS = 0.5
_TRIPS = 5
_TRIP_SECONDS = 2.0  # for all of them
_FIRST_BYTES = 2**20
_FIRST_SECONDS = 4.0
_BYTES = 16 * 2**20
_FAST_SECONDS = 5.0  # in which a link carries all the bytes that are worth it


class Link(NamedTuple):
    """What was measured from one node to another: the best so far.

    Attributes:
        rate: bytes a second; 0 where they were not taken in time.
        trip: seconds for a question and its answer.
    """

    rate: float
    trip: float


Links = Mapping[Tuple[str, str], Link]  # by the sending and the receiving node


def measure_links(cluster: Cluster, note: Note, suspects: Iterable[str] = ()) -> None:
    """Measures from this task's node to the next two, and keeps the best of each in the note.

    Args:
        cluster: the cluster.
        note: this task's; its "links" are the measurements by rank.
        suspects: the nodes to which, or from which, to measure again; all if there are none.
    """
    assert cluster.task is not None
    links: Dict[str, Sequence[float]] = note.setdefault("links", {})
    firsts = first_ranks(cluster)
    nodes = list(firsts)
    if firsts[cluster.task.node] != cluster.task.rank:
        return
    at = nodes.index(cluster.task.node)
    suspects = set(suspects)
    if suspects:
        time.sleep(_PAUSE_SECONDS)  # what kept the machine busy may have passed
    # Of two nodes the other one comes twice: a moment does not count as a slow direction.
    others = [nodes[(at + step) % len(nodes)] for step in ((1, 2) if len(nodes) > 2 else (1, 1))]
    targets = [firsts[node] for node in others if node != nodes[at]]
    if len(nodes) == 1 and len(cluster.tasks) > 1:
        targets = [(cluster.task.rank + 1) % len(cluster.tasks)]
    for rank in targets:
        if suspects and not suspects & {cluster.task.node, cluster.tasks[rank].node}:
            continue
        link = _measure(cluster.tasks[rank].address, rank)
        if link is not None:
            before = Link(*links.get(str(rank), link))
            links[str(rank)] = Link(max(link.rate, before.rate), min(link.trip, before.trip))


def _measure(address: str, rank: int) -> Optional[Link]:
    trips: List[float] = []
    while len(trips) < _TRIPS and sum(trips) < _TRIP_SECONDS:
        reply = ask_rank(address, rank)
        if reply.problem is not None:
            return None  # it is told elsewhere that it cannot be reached
        trips.append(reply.seconds)
    rate = measure_bandwidth(address, _FIRST_BYTES, _FIRST_SECONDS) or 0.0
    if rate and _BYTES / rate < _FAST_SECONDS:  # a slow link is known by the first of them
        rate = measure_bandwidth(address, _BYTES) or rate
    return Link(rate, min(trips))


def find_slow_nodes(links: Links) -> Dict[str, str]:
    """Returns the nodes that are far slower than the others, each with what was measured.

    Of two nodes no median tells which is the slow one: a link that carries far less one way than
    the other is told of the node that sends over it, and one that is slow both ways is not known.
    """
    usual = _Usual.of(links)
    slow: Dict[str, str] = {}
    while True:
        # The one with the most slow links first, and then without it: two that are slow do not make
        # a third so that measured with both.
        left = {pair: link for pair, link in links.items() if not set(pair) & set(slow)}
        found = usual.find_behind(left)
        if not found:
            return dict(sorted(slow.items(), key=lambda one: usual.nodes.index(one[0])))
        worst = max(found, key=lambda node: usual.count_slow_links(left, node))
        slow[worst] = ", ".join(found[worst])


class _Usual(NamedTuple):
    """What is usual among the nodes of the step."""

    nodes: Sequence[str]
    sent: float
    received: float
    trip: float

    @classmethod
    def of(cls, links: Links) -> _Usual:
        nodes = list(dict.fromkeys(node for pair in links for node in pair))
        sent, received, trips = (list(best.values()) for best in _best_of_nodes(links))
        if len(nodes) == 2:  # what one sends the other receives
            return cls(nodes, max(sent), 0.0, statistics.median(trips))
        medians = (statistics.median(values) for values in (sent, received, trips))
        return cls(nodes, *medians)

    def find_behind(self, links: Links) -> Dict[str, List[str]]:
        """Returns the nodes that are far behind, with what is said of each."""
        name = "median" if len(self.nodes) > 2 else "the other way"
        sent, received, trips = _best_of_nodes(links)
        found: Dict[str, List[str]] = {}
        for verb, rates, usual in (
            ("sends", sent, self.sent),
            ("receives", received, self.received),
        ):
            for node, rate in rates.items():
                if rate * RATE_RATIO < usual:
                    told = f"{verb} {_megabytes(rate)} ({name} {_megabytes(usual)})"
                    found.setdefault(node, []).append(told)
        for node, trip in trips.items():
            if trip > self.trip * TRIP_RATIO:
                told = f"answers in {trip * 1e3:.1f} ms ({name} {self.trip * 1e3:.1f} ms)"
                found.setdefault(node, []).append(told)
        return found

    def count_slow_links(self, links: Links, node: str) -> int:
        return sum(
            link.rate * RATE_RATIO < self.sent or link.trip > self.trip * TRIP_RATIO
            for pair, link in links.items()
            if node in pair
        )


def _best_of_nodes(links: Links) -> Tuple[Dict[str, float], Dict[str, float], Dict[str, float]]:
    """Returns the best that each node has sent, has received, and in what time it answered."""
    sent: Dict[str, float] = {}
    received: Dict[str, float] = {}
    trips: Dict[str, float] = {}
    for (sender, receiver), link in links.items():
        sent[sender] = max(link.rate, sent.get(sender, 0.0))
        received[receiver] = max(link.rate, received.get(receiver, 0.0))
        for node in (sender, receiver):
            trips[node] = min(link.trip, trips.get(node, link.trip))
    return sent, received, trips


def check_speed(notes: Mapping[int, Note], cluster: Cluster) -> Tuple[Result, List[str]]:
    """Returns what was measured, and the nodes that seem slow and are to be measured again."""
    tasks = cluster.tasks
    many = len(first_ranks(cluster)) > 1
    links = {
        (tasks[rank].node if many else str(rank), tasks[int(to)].node if many else to): Link(*link)
        for rank, note in notes.items()
        for to, link in note.get("links", {}).items()
    }
    if not links:
        return Result("speed", SKIPPED, "no connection to another task could be measured"), []
    slow = find_slow_nodes(links) if many else {}
    if slow:
        told = "; ".join(f"{node} {what}" for node, what in slow.items())
        without = f"--exclude={compress_hostlist(list(slow))}"
        return Result(
            "speed",
            WARNING,
            f"{told}: look at its cable, its interface (ethtool) and what else runs there, or do "
            f"without it (sbatch {without})",
        ), list(slow)
    slowest, (sender, receiver) = min((link.rate, pair) for pair, link in links.items())
    trip = statistics.median(link.trip for link in links.values())
    rate = statistics.median(link.rate for link in links.values())
    between = "between nodes" if many else "between the tasks of the node"
    least = f", the slowest {_megabytes(slowest)} from {sender} to {receiver}" if many else ""
    return Result(
        "speed", OK, f"round trip {trip * 1e6:.0f} µs; {between} {_megabytes(rate)}{least}"
    ), []


def _megabytes(rate: float) -> str:
    if rate * _FIRST_SECONDS < _FIRST_BYTES:
        return f"under {_FIRST_BYTES / _FIRST_SECONDS / 1e6:.1f} MB/s"
    return f"{rate / 1e6:.{0 if rate >= 1e7 else 1}f} MB/s"
