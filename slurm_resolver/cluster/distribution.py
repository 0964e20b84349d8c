"""Slurm's distributions: which node each rank is dealt to, and its local rank there.

Steps may have 100,000 tasks and more: no loop here turns once a task.
"""

from __future__ import annotations

import itertools
from typing import List, Sequence, Tuple

RankPlaces = Tuple[List[int], List[int]]  # by rank: the number of its node, its local rank

_chain = itertools.chain.from_iterable


def distribute_block(counts: Sequence[int]) -> RankPlaces:
    """Deals each node its tasks at once.

    >>> distribute_block([2, 1])
    ([0, 0, 1], [0, 1, 0])
    """
    node_of = list(_chain(map(itertools.repeat, range(len(counts)), counts)))
    return node_of, list(_chain(map(range, counts)))


def distribute_plane(counts: Sequence[int], plane_size: int) -> RankPlaces:
    """Deals `plane_size` tasks to each node in turn, as long as the node has tasks left to take.

    >>> distribute_plane([3, 1], plane_size=1)
    ([0, 1, 0, 0], [0, 0, 1, 2])
    """
    node_of: List[int] = []
    local_rank_of: List[int] = []
    nodes = list(range(len(counts)))
    taken = 0
    while nodes:
        if plane_size == 1:
            node_of += nodes
            local_rank_of += [taken] * len(nodes)
        else:
            takes = [min(plane_size, counts[node] - taken) for node in nodes]
            node_of += _chain(map(itertools.repeat, nodes, takes))
            local_rank_of += _chain(range(taken, taken + take) for take in takes)
        taken += plane_size
        nodes = [node for node in nodes if counts[node] > taken]
    return node_of, local_rank_of


def local_ranks(node_of: Sequence[int], num_nodes: int) -> List[int]:
    """Returns by rank its local rank: ranks on a node count up from 0."""
    following = [itertools.count() for _ in range(num_nodes)]
    return list(map(next, map(following.__getitem__, node_of)))
