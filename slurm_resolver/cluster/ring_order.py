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

import itertools
from collections.abc import Iterator

from slurm_resolver.cluster.layout import ByRank, Ranks


def order_by_ring(workers: Ranks, node_of: ByRank, chief: Ranks = ()) -> Ranks:
    """Returns the workers' ranks by index, such that the ring leaves every node once.

    The ranks stay in ascending order where that is enough. Elsewhere the ring starts at the chief's
    node, or at that of the lowest rank. It visits the nodes by their lowest ranks, which a topology
    may have ordered, and the workers of a node by rank. So worker 0 is the lowest rank, or the
    lowest on the chief's node.

    `chief` has its rank, if there is one.

    >>> list(order_by_ring([0, 1, 2, 3], node_of=[0, 1, 0, 1]))  # cyclic on two nodes
    [0, 2, 1, 3]
    """
    # The ring visits the names of the tasks in their order as text.
    ring = itertools.chain(chief, map(workers.__getitem__, _in_text_order(len(workers))))
    if _leaves_each_node_once(map(node_of.__getitem__, ring)):
        return workers
    # Only a topology has given the nodes another order than that of their lowest ranks.
    nodes = dict.fromkeys([node_of[(chief or workers)[0]], *node_of])
    place_of = dict(zip(nodes, itertools.count()))
    places = list(map(place_of.__getitem__, node_of))
    by_node = sorted(workers, key=places.__getitem__)  # stable: the ranks of a node ascend
    by_index = by_node[:]
    for index, rank in zip(_in_text_order(len(workers)), by_node):
        by_index[index] = rank
    return by_index


def _leaves_each_node_once(nodes: Iterator[int]) -> bool:
    """Whether a closed ring that visits the nodes in this order leaves none of them twice.

    It looks no further than to the first node that the ring comes back to: in a large step the ring
    soon does, or every node has one task.
    """
    visits = (node for node, _ in itertools.groupby(nodes))
    first = next(visits)
    visited = {first}
    for node in visits:
        if node in visited:
            # The ring is closed: its end may be on the first node again.
            return node == first and next(visits, None) is None
        visited.add(node)
    return True


def _in_text_order(count: int) -> Iterator[int]:
    """Returns the numbers below `count` in their order as text: 0, 1, 10, 100, 101, …, 11, 110, …

    It is faster than sorting them, and lazy.
    """
    shorter = (count + 99) // 100 * 10  # all numbers below have ten longer ones, or none
    for number in _in_text_order(shorter) if count > 10 else range(count):
        yield number
        if number * 10 >= shorter:
            yield from range(number * 10, count)[:10]
