"""Worker indices with which TensorFlow's ring of collectives leaves every node only once.

In an all-reduce over gRPC (``CommunicationImplementation.RING``, and AUTO without NCCL) every task
sends to the next one of a ring. The ring has the tasks in the order of their *names*, as text:
``/job:chief/replica:0/task:0`` before the workers, and worker 10 before worker 2. Parameter servers
and the evaluator are not in it. With W tasks each of them sends 2(W-1)/W times the tensor's size.
Only what goes to another node uses the network: at best one task of a node sends to another node,
at worst all of them do.

Measured with 16 workers, 4 on each of 4 nodes: bytes that the busiest node sends in an all-reduce,
in units of the tensor's size. The optimum is 2(W-1)/W = 1.88:

=====================================  ============
index of the workers                   busiest node
=====================================  ============
by rank, block placement               3.76
by rank, cyclic placement              7.53
such that the ring goes node by node   1.88
=====================================  ============

By rank is as good with up to 10 workers in block placement, and with one task on each node. The
order of the ring is the same from TensorFlow 2.15 to 2.21. With several devices in each task, those
of one task follow each other in the ring.
"""

from __future__ import annotations

import itertools
from array import array
from typing import Iterable, List, Optional, Sequence

_UP_TO_99 = sorted(range(100), key=str)


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
    if isinstance(workers, range):
        worker_nodes = node_of[workers.start : workers.stop]
    else:
        worker_nodes = [node_of[rank] for rank in workers]
    chief_node = [] if chief is None else [node_of[chief]]
    nodes = list(dict.fromkeys(itertools.chain(chief_node, worker_nodes)))  # by their lowest ranks
    if len(nodes) in (1, len(chief_node) + len(worker_nodes)):  # one node, or one task on each
        return workers
    indices = index_order(len(worker_nodes))  # as the ring has them
    if is_contiguous(itertools.chain(chief_node, map(worker_nodes.__getitem__, indices))):
        return workers
    if nodes != sorted(nodes) or list(worker_nodes) != sorted(worker_nodes):
        positions = {node: position for position, node in enumerate(nodes)}
        position_of = [positions[node] for node in worker_nodes]
        order = sorted(range(len(worker_nodes)), key=position_of.__getitem__)
        workers = [workers[i] for i in order]
    by_index = array("i", bytes(4 * len(worker_nodes)))  # a ninth of the memory of a list
    for index, rank in zip(indices, workers):
        by_index[index] = rank
    return by_index


def index_order(count: int) -> List[int]:
    """Returns the indices of a job's `count` tasks in the order of their names as text.

    >>> index_order(12)
    [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    if count <= 100:
        return [index for index in _UP_TO_99 if index < count]
    # As text, 12 is followed by 120 to 129. The indices below `shorter` are ordered first, and each
    # of them is followed by its ten longer ones, unless these are below `shorter` themselves. As
    # `shorter` is a multiple of ten, all ten are below it or none is.
    shorter = -(-count // 100) * 10
    indices = list(range(count))
    order = []
    for index in index_order(shorter):
        order.append(index)
        if index * 10 >= shorter:
            order += indices[index * 10 : index * 10 + 10]
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
