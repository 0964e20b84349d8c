"""Slurm's distributions: which node each rank runs on, and its local rank there.

Rules: srun(1), option ``--distribution``, and Slurm's source (dist_tasks.c). A step may have
100,000 tasks and more, and so no Python loop here has one turn for each task.
"""

from __future__ import annotations

import itertools
from typing import List, Sequence, Tuple

# by rank: the index of its node, and its local rank
NodesAndLocalRanks = Tuple[List[int], List[int]]

_chain = itertools.chain.from_iterable


def distribute_block(counts: Sequence[int]) -> NodesAndLocalRanks:
    """Puts contiguous ranks on each node: ``counts[i]`` ranks on node i.

    >>> distribute_block([2, 1])
    ([0, 0, 1], [0, 1, 0])
    """
    node_of = list(_chain(map(itertools.repeat, range(len(counts)), counts)))
    return node_of, list(_chain(map(range, counts)))


def distribute_plane(counts: Sequence[int], plane_size: int) -> NodesAndLocalRanks:
    """Puts `plane_size` ranks on each node in turn, until node i has ``counts[i]`` ranks.

    With a plane size of 1 this is the cyclic distribution.

    >>> distribute_plane([3, 1], plane_size=1)
    ([0, 1, 0, 0], [0, 0, 1, 2])
    """
    node_of: List[int] = []
    local_rank_of: List[int] = []
    nodes = list(range(len(counts)))
    placed = 0  # ranks on every node of `nodes` so far
    while nodes:
        if plane_size == 1:
            node_of += nodes
            local_rank_of += [placed] * len(nodes)
        else:
            planes = [min(plane_size, counts[node] - placed) for node in nodes]
            node_of += _chain(map(itertools.repeat, nodes, planes))
            local_rank_of += _chain(range(placed, placed + plane) for plane in planes)
        placed += plane_size
        nodes = [node for node in nodes if counts[node] > placed]
    return node_of, local_rank_of


def local_ranks(node_of: Sequence[int], num_nodes: int) -> List[int]:
    """Returns by rank its local rank: the ranks on each node are numbered from 0."""
    next_local_rank = [itertools.count() for _ in range(num_nodes)]
    return list(map(next, map(next_local_rank.__getitem__, node_of)))
