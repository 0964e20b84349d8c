"""How the tasks of a job are spread over the nodes."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from typing import Dict, Iterable, List, Mapping, Optional, Sequence


def spread_ranks(
    node_of: Sequence[int], free_ranks: Sequence[int], count: int, chief_node: Optional[int]
) -> List[int]:
    """Returns `count` of the free ranks, spread over the nodes: the lowest ranks of each node."""
    tasks_on = Counter(map(node_of.__getitem__, free_ranks))
    remaining = servers_per_node(tasks_on, count, chief_node)
    ranks: List[int] = []
    for rank in free_ranks:
        if len(ranks) == count:
            break
        if remaining[node_of[rank]]:
            remaining[node_of[rank]] -= 1
            ranks.append(rank)
    return ranks


def servers_per_node(
    tasks_on: Mapping[int, int], count: int, chief_node: Optional[int]
) -> Dict[int, int]:
    """Returns by node its number of parameter servers, of `count` in all.

    In every round each node gets one, as long as it has tasks for them (`tasks_on`). The chief's
    node is last in every round, so that it is the first to get none.
    """
    servers_on = dict.fromkeys(tasks_on, 0)
    nodes = sorted(tasks_on)
    if chief_node is not None and chief_node in tasks_on:
        nodes.remove(chief_node)
        nodes.append(chief_node)
    while count:
        nodes = [node for node in nodes if servers_on[node] < tasks_on[node]]
        for node in nodes[:count]:
            servers_on[node] += 1
        count -= len(nodes[:count])
    return servers_on


def ranks_of_fullest_nodes(
    node_of: Sequence[int], free_ranks: Iterable[int], count: int
) -> List[int]:
    """Returns `count` of the free ranks such that the others are spread evenly over the nodes.

    Each is the last free rank of the node that has most of them then, and of such nodes of that
    with the highest first rank: the lowest rank of all is the last to be taken. So those who train,
    and share a node's GPUs, are as many on each node as can be.
    """
    ranks_on: Dict[int, List[int]] = defaultdict(list)
    for rank in free_ranks:
        ranks_on[node_of[rank]].append(rank)
    nodes = [(-len(ranks), -ranks[0], node) for node, ranks in ranks_on.items()]
    heapq.heapify(nodes)
    found = []
    for _ in range(count):
        free, first, node = nodes[0]
        found.append(ranks_on[node].pop())
        heapq.heapreplace(nodes, (free + 1, first, node))
    return sorted(found)
