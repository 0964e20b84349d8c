"""Worker indices with which TensorFlow's ring of collectives leaves every host only once.

In an all-reduce over gRPC (``CommunicationImplementation.RING``, and AUTO without NCCL) every task
sends to the next one of a ring, and the ring visits the tasks in the order of their *names*, as
text: ``/job:chief/replica:0/task:0`` before the workers, and worker 10 before worker 2. Parameter
servers and the evaluator are not in it. With W tasks each one sends 2(W-1)/W times the tensor's
size, but only what goes to another host passes the network: at best one task of a host sends
there, at worst all of them do.

Measured with 16 workers, 4 on each of 4 hosts: bytes that the busiest host sends in an all-reduce,
in units of the tensor's size. The best that any order can do is 2(W-1)/W = 1.88:

=====================================  ============
index of the workers                   busiest host
=====================================  ============
by rank, block placement               3.76
by rank, cyclic placement              7.53
such that the ring goes host by host   1.88
=====================================  ============

By rank is as good up to 10 workers in block placement, and with one task a host. The order is the
same from TensorFlow 2.15 to 2.21; with several devices a task, those of one task follow each other.
"""

from __future__ import annotations

import itertools
from array import array
from typing import Iterable, List, Optional, Sequence

_UP_TO_99 = sorted(range(100), key=str)


def order_by_ring(
    workers: Sequence[int], node_of: Sequence[int], chief: Optional[int] = None
) -> Sequence[int]:
    """Returns the workers' ranks by index, such that the ring leaves every host once.

    The ranks as they come where the ring then leaves no host more often. Elsewhere the ring visits
    the hosts in the order of their lowest ranks, from the chief's on, and each host's workers by
    rank; so that worker 0 is the lowest rank, or shares the chief's host if any worker does.

    >>> list(order_by_ring([0, 1, 2, 3], node_of=[0, 1, 0, 1]))  # cyclic on two nodes
    [0, 2, 1, 3]

    Args:
        workers: the workers' ranks, ascending.
        node_of: by rank, which node it runs on.
        chief: the chief's rank, if there is one.
    """
    if isinstance(workers, range):
        places = node_of[workers.start : workers.stop]
    else:
        places = [node_of[rank] for rank in workers]
    first = [] if chief is None else [node_of[chief]]
    hosts = list(dict.fromkeys(itertools.chain(first, places)))  # by their lowest ranks
    if len(hosts) in (1, len(first) + len(places)):  # one host, or one task on each
        return workers
    visits = index_order(len(places))
    if is_contiguous(itertools.chain(first, map(places.__getitem__, visits))):
        return workers
    if hosts != sorted(hosts) or list(places) != sorted(places):
        turns = {host: turn for turn, host in enumerate(hosts)}
        turn_of = [turns[host] for host in places]
        workers = [workers[i] for i in sorted(range(len(places)), key=turn_of.__getitem__)]
    by_index = array("i", bytes(4 * len(places)))  # a ninth of a list's memory
    for index, rank in zip(visits, workers):
        by_index[index] = rank
    return by_index


def index_order(count: int) -> List[int]:
    """Returns the indices of a job's `count` tasks in the order of their names as text.

    >>> index_order(12)
    [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    if count <= 100:
        return [index for index in _UP_TO_99 if index < count]
    # 12 is followed by 120 to 129, which begin no index themselves from `parents` on: that is a
    # whole number of tens, so that of these ten either all do or none does.
    parents = -(-count // 100) * 10
    indices = list(range(count))
    order = []
    for index in index_order(parents):
        order.append(index)
        if index * 10 >= parents:
            order += indices[index * 10 : index * 10 + 10]
    return order


def is_contiguous(nodes: Iterable[int]) -> bool:
    """Whether a ring through these nodes leaves none of them more than once."""
    runs = (node for node, _ in itertools.groupby(nodes))
    first = next(runs)
    seen = {first}
    for node in runs:
        if node in seen:  # the last run may go on where the ring begins
            return node == first and next(runs, None) is None
        seen.add(node)
    return True
