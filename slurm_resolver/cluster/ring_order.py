"""Worker indices with which TensorFlow's ring of collectives leaves every node only once.

In an all-reduce over gRPC (``CommunicationImplementation.RING``, and AUTO without NCCL) every task
sends to the next one of a ring. The ring orders the tasks by their *names*, as text, from
TensorFlow 2.15 to 2.21: ``/job:chief/replica:0/task:0`` before the workers, and worker 10 before
worker 2. Parameter servers and the evaluator are not in it.

With 16 workers, 4 on each of 4 nodes, the busiest node sends 1.88 times the tensor's size in a ring
that goes node by node, 3.76 times with the workers by rank in block placement, and 7.53 times in
cyclic placement. By rank is as good with up to 10 workers in block placement, and with one task on
each node.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Sequence


def order_by_ring(
    workers: Sequence[int], node_of: Sequence[int], chief: Sequence[int] = ()
) -> Sequence[int]:
    """Returns the workers' ranks by index, such that the ring leaves every node once.

    The ranks stay in ascending order where that is enough. Elsewhere the ring starts at the chief's
    node, or at that of the lowest rank. It visits the nodes by their lowest ranks, which a topology
    may have ordered, and the workers of a node by rank. So worker 0 is the lowest rank, or the
    lowest on the chief's node.

    `chief` has its rank, if there is one.

    >>> list(order_by_ring([0, 1, 2, 3], node_of=[0, 1, 0, 1]))  # cyclic on two nodes
    [0, 2, 1, 3]
    """
    # The ring visits the names of the tasks in their order as text: 0, 1, 10, 11, 2, …
    indices = _in_text_order(len(workers))
    ring = [node_of[rank] for rank in chief]
    nodes = [node_of[rank] for rank in workers]
    ring += [nodes[index] for index in indices]
    leaves = sum(map(operator.ne, ring, itertools.islice(ring, 1, None)))
    leaves += ring[-1] != ring[0]  # the ring is closed
    if leaves <= len(set(ring)):
        return workers
    by_index = list(workers)
    by_node = by_index[:]
    first = ring[0]
    ascending = sorted(nodes)
    if nodes != ascending:  # without a topology, block placement needs no sorting, which takes long
        place_of = {node: place for place, node in enumerate(dict.fromkeys(node_of))}
        places = [place_of[node] for node in node_of]
        by_node.sort(key=places.__getitem__)  # stable: the ranks of a node ascend
        ascending = [places[rank] for rank in by_node]
        first = place_of[first]
    start = bisect.bisect_left(ascending, first)
    for index, rank in zip(indices, by_node[start:] + by_node[:start]):
        by_index[index] = rank
    return by_index


def _in_text_order(count: int) -> list[int]:
    """Returns the numbers below `count` in their order as text, faster than by sorting them."""
    numbers = list(range(min(count, 10)))
    least = 1  # of the numbers with as many digits
    while least * 10 < count:
        longer = []
        for number in numbers:
            longer.append(number)
            if number >= least:
                longer += range(number * 10, min(number * 10 + 10, count))
        numbers = longer
        least *= 10
    return numbers
