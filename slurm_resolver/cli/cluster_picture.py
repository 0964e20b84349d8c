"""A cluster as a person wants to see it: nodes that look alike become one row.

Nothing here prints; `Row.unfold` tells exactly what a row stands for.
"""

from __future__ import annotations

from typing import Collection, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.cluster.tasks import Task
from slurm_resolver.slurm.hostlist_compress import compress_hostlist

_FEWEST = 4  # as many nodes alike make a row; fewer are shown one by one
_MOST_RUNS = 4
_LONGEST_LIST = 30

_Shape = Tuple[Tuple[str, int, str], ...]


class Row(NamedTuple):
    """Neighbouring nodes with the same tasks, but for indices, and ranks, which advance evenly.

    Attributes:
        nodes: their names.
        on_nodes: the tasks of each of them.
    """

    nodes: Tuple[str, ...]
    on_nodes: Tuple[Sequence[Task], ...]

    @property
    def tasks(self) -> Sequence[Task]:
        """The tasks of its first node."""
        return self.on_nodes[0]

    def unfold(self) -> List[Task]:
        """Returns all its tasks, node by node."""
        return [task for own in self.on_nodes for task in own]

    def hosts(self) -> str:
        """Returns its nodes as a host list, or the first and the last where that is long."""
        text = compress_hostlist(self.nodes)
        return text if len(text) <= _LONGEST_LIST else f"{self.nodes[0]} ... {self.nodes[-1]}"

    def ports(self, job: str) -> str:
        """Returns what its tasks of this job have behind the node's name: ``:23001-23004``."""
        first = self.nodes[0]
        ports: Dict[str, List[int]] = {}
        for task in self.tasks:
            if task.job == job:
                host, _, port = shorten(task.address, first).rpartition(":")
                ports.setdefault(host, []).append(int(port))
        return " ".join(f"{host}:{spans(numbers)}" for host, numbers in ports.items())

    def ranks(self) -> str:
        """Returns the ranks of all its tasks as text: ``8-3999``."""
        return spans(task.rank for task in self.unfold())

    def indices(self, job: str) -> str:
        """Returns the indices of all its tasks of this job as text: ``5-3996``."""
        return spans(task.index for task in self.unfold() if task.job == job)


def fold_nodes(tasks: Iterable[Task], alone: Collection[str] = ()) -> List[Row]:
    """Returns the rows of these tasks, in the order of the lowest rank on each node.

    The tasks come by rank. The nodes in `alone` are not folded, nor are those whose addresses do
    not begin with the node's name.
    """
    on_node = tasks_by_node(tasks)
    rows: List[Row] = []
    alike: List[str] = []  # the nodes since the last row
    steps: Optional[List[int]] = None  # what the ranks advance by between any two of them
    last_shape: Optional[_Shape] = None
    for node, own in on_node.items():
        shape = None if node in alone else _shape(node, own)
        if shape is not None and shape == last_shape:
            last = on_node[alike[-1]]
            advance = [task.rank - before.rank for before, task in zip(last, own)]
            if steps is None or steps == advance:
                steps = advance
                alike.append(node)
                continue
        rows += _rows(alike, on_node)
        alike, steps, last_shape = [node], None, shape
    return rows + _rows(alike, on_node)


def tasks_by_node(tasks: Iterable[Task]) -> Dict[str, List[Task]]:
    """Returns the tasks of each node, the nodes in the order of their first task."""
    on_node: Dict[str, List[Task]] = {}
    for task in tasks:
        on_node.setdefault(task.node, []).append(task)
    return on_node


def count_jobs(tasks: Iterable[Task]) -> List[Tuple[str, int]]:
    """Returns each job and the number of its tasks, in alphabetical order."""
    counts: Dict[str, int] = {}
    for task in tasks:
        counts[task.job] = counts.get(task.job, 0) + 1
    return sorted(counts.items())


def shorten(address: str, node: str) -> str:
    """Returns the address without the node's name, where it begins with that."""
    return address[len(node) :] if address.startswith(node) else address


def spans(numbers: Iterable[int]) -> str:
    """Returns ascending runs of the numbers as text, those in the middle left out if many.

    >>> spans([4, 1, 2, 3, 9])
    '1-4,9'
    """
    runs: List[List[int]] = []
    for number in sorted(numbers):
        if runs and number <= runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    if len(texts) > _MOST_RUNS:
        texts[_MOST_RUNS - 1 : -1] = ["..."]
    return ",".join(texts)


def _shape(node: str, tasks: Sequence[Task]) -> Optional[_Shape]:
    if not all(task.address.startswith(node) for task in tasks):
        return None
    return tuple([(task.job, task.local_rank, task.address[len(node) :]) for task in tasks])


def _rows(nodes: Sequence[str], on_node: Dict[str, List[Task]]) -> List[Row]:
    if len(nodes) >= _FEWEST:
        return [Row(tuple(nodes), tuple(on_node[node] for node in nodes))]
    return [Row((node,), (on_node[node],)) for node in nodes]
