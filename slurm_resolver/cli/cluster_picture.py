"""The rows of the picture of a cluster, in which many nodes with the same tasks share a row.

Nothing here prints. `Row.tasks()` returns exactly the tasks that a row stands for.
"""

from __future__ import annotations

from typing import Collection, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.cluster.tasks import Task, tasks_by_node
from slurm_resolver.slurm.hostlist_compress import compress_hostlist
from slurm_resolver.wording import ranges_of

_FEWEST_NODES = 4  # fewer nodes with the same tasks have a row each
_MOST_RANGES = 4
_LONGEST_HOST_LIST = 30

_Pattern = Tuple[Tuple[str, int, str], ...]  # job, local rank, address without the node


class Row(NamedTuple):
    """Neighbouring nodes whose tasks have the same jobs, local ranks and ports.

    From each node to the next the ranks grow by the same numbers.

    Attributes:
        nodes: their names.
        tasks_of_nodes: the tasks of each of them.
    """

    nodes: Tuple[str, ...]
    tasks_of_nodes: Tuple[Sequence[Task], ...]

    @property
    def tasks_of_first_node(self) -> Sequence[Task]:
        """The tasks of its first node, which stand for those of the others."""
        return self.tasks_of_nodes[0]

    def tasks(self) -> List[Task]:
        """Returns all its tasks, node by node."""
        return [task for on_node in self.tasks_of_nodes for task in on_node]

    def host_list(self) -> str:
        """Returns its nodes as a host list, or the first and the last where that is long."""
        if len(self.nodes) == 1:
            return self.nodes[0]
        text = compress_hostlist(self.nodes)
        return text if len(text) <= _LONGEST_HOST_LIST else f"{self.nodes[0]} ... {self.nodes[-1]}"

    def ports(self, job: str) -> str:
        """Returns the ports of this job's tasks, the same on each node: ``:23001-23004``."""
        first = self.nodes[0]
        ports: Dict[str, List[int]] = {}
        for task in self.tasks_of_first_node:
            if task.job == job:
                host, _, port = address_without_node(task.address, first).rpartition(":")
                ports.setdefault(host, []).append(int(port))
        return " ".join(f"{host}:{number_ranges(numbers)}" for host, numbers in ports.items())

    def ranks(self) -> str:
        """Returns the ranks of all its tasks: ``8-3999``."""
        return number_ranges(task.rank for task in self.tasks())

    def indices(self, job: str) -> str:
        """Returns the indices of all its tasks of this job: ``5-3996``."""
        return number_ranges(task.index for task in self.tasks() if task.job == job)


def picture_rows(tasks: Iterable[Task], single_nodes: Collection[str] = ()) -> List[Row]:
    """Returns the rows of these tasks, in the order of the lowest rank on each node.

    The tasks come by rank. Each of the `single_nodes` has a row by itself, and so has a node whose
    addresses do not begin with its name.
    """
    by_node = tasks_by_node(tasks)
    rows: List[Row] = []
    same: List[str] = []  # the nodes of the next row
    growth: Optional[List[int]] = None  # of the ranks, from one of these nodes to the next
    last_pattern: Optional[_Pattern] = None
    for node, on_node in by_node.items():
        pattern = None if node in single_nodes else _pattern(node, on_node)
        if pattern is not None and pattern == last_pattern:
            last = by_node[same[-1]]
            new_growth = [task.rank - before.rank for before, task in zip(last, on_node)]
            if growth is None or growth == new_growth:
                growth = new_growth
                same.append(node)
                continue
        rows += _rows(same, by_node)
        same, growth, last_pattern = [node], None, pattern
    return rows + _rows(same, by_node)


def address_without_node(address: str, node: str) -> str:
    """Returns the address without the node's name, if it begins with that."""
    return address[len(node) :] if address.startswith(node) else address


def number_ranges(numbers: Iterable[int]) -> str:
    """Returns the numbers as ascending ranges; of many ranges those in the middle are left out.

    >>> number_ranges([4, 1, 2, 3, 9])
    '1-4,9'
    """
    texts = ranges_of(numbers)
    if len(texts) > _MOST_RANGES:
        texts[_MOST_RANGES - 1 : -1] = ["..."]
    return ",".join(texts)


def _pattern(node: str, tasks: Sequence[Task]) -> Optional[_Pattern]:
    """Returns what nodes that share a row have in common; None for a node that shares none."""
    if not all(task.address.startswith(node) for task in tasks):
        return None
    return tuple([(task.job, task.local_rank, task.address[len(node) :]) for task in tasks])


def _rows(nodes: Sequence[str], by_node: Dict[str, List[Task]]) -> List[Row]:
    if len(nodes) >= _FEWEST_NODES:
        return [Row(tuple(nodes), tuple(by_node[node] for node in nodes))]
    return [Row((node,), (by_node[node],)) for node in nodes]
