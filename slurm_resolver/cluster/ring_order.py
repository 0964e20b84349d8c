"""Worker indices with which TensorFlow's ring of collectives leaves every node only once.

In an all-reduce over gRPC (``CommunicationImplementation.RING``, and AUTO without NCCL) every task
sends to the next one of a ring. The ring has the tasks in the order of their *names*, as text:
``/job:chief/replica:0/task:0`` before the workers, and worker 10 before worker 2. Parameter servers
and the evaluator are not in it. With W tasks each of them sends 2(W-1)/W times the tensor's size.
Only what goes to another node uses the network: at best one task of a node sends to another node,
at worst all of them do.

With 16 workers, 4 on each of 4 nodes, the busiest node sends 1.88 times the tensor's size in a ring
that goes node by node, 3.76 times with the workers by rank in block placement, and 7.53 times in
cyclic placement.

By rank is as good with up to 10 workers in block placement, and with one task on each node. The
order of the ring is the same from TensorFlow 2.15 to 2.21. With several devices in each task, those
of one task follow each other in the ring.
"""

from __future__ import annotations

import itertools
from typing import Iterable, List, Optional, Sequence


def order_by_ring(
    workers: Sequence[int], node_of: Sequence[int], chief: Optional[int] = None
) -> Sequence[int]:
    """Returns the workers' ranks by index, such that the ring leaves every node once.

    These are the ranks in ascending order where that is enough. Elsewhere the ring has the chief's
    node first, then the others in the order of their lowest ranks, and the workers of a node by
    rank. So worker 0 is the lowest rank, or a worker on the chief's node if there is one.

    >>> list(order_by_ring([0, 1, 2, 3], node_of=[0, 1, 0, 1]))  # cyclic on two nodes
    [0, 2, 1, 3]

    Args:
        workers: the workers' ranks, ascending.
        node_of: by rank, which node it runs on.
        chief: the chief's rank, if there is one.
    """
    worker_nodes = list(map(node_of.__getitem__, workers))
    chief_node = [] if chief is None else [node_of[chief]]
    nodes = list(dict.fromkeys([*chief_node, *worker_nodes]))  # in the order of their lowest ranks
    if len(nodes) in (1, len(chief_node) + len(workers)):  # one node, or one task on each
        return workers
    indices = index_order(len(workers))  # as the ring has them
    if is_contiguous(itertools.chain(chief_node, map(worker_nodes.__getitem__, indices))):
        return workers
    position_of = {node: position for position, node in enumerate(nodes)}
    positions = list(map(position_of.__getitem__, worker_nodes))
    node_by_node = sorted(range(len(workers)), key=positions.__getitem__)
    by_index = [0] * len(workers)
    for index, number in zip(indices, node_by_node):
        by_index[index] = number
    return list(map(workers.__getitem__, by_index))


def index_order(count: int) -> List[int]:
    """Returns the indices of a job's `count` tasks in the order of their names as text.

    >>> index_order(12)
    [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    if count <= 100:
        return sorted(range(count), key=str)
    # Each index is followed by its ten longer ones: 12 by 120 to 129. As `shorter` is a multiple of
    # ten, all ten are below it, and in order already, or none is. This takes a fifth of the time.
    shorter = -(-count // 100) * 10
    order: List[int] = []
    for index in index_order(shorter):
        order.append(index)
        if index * 10 >= shorter:
            order += range(index * 10, min(index * 10 + 10, count))
    return order


def is_contiguous(nodes: Iterable[int]) -> bool:
    """Whether a ring that visits the nodes in this order leaves none of them more than once."""
    runs = (node for node, _ in itertools.groupby(nodes))
    first = next(runs)
    visited = {first}
    for node in runs:
        if node in visited:  # only the last one may be the first again, as the ring is closed
            return node == first and next(runs, None) is None
        visited.add(node)
    return True
