"""What a step asks for on the nodes that were chosen: of a heterogeneous job, by component.

With --no-kill Slurm removes a failed node from its component and lets both go on, and a step over
both can be started again on other nodes (22.05, 24.11 and 26.05, live). But a component whose only
node fails is ended, or requeued by itself, and then waits for ever while the other one runs on; and
one that has a single node is ended too when a node of the other fails. So each needs two.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.slurm.hostlist_compress import compress_hostlist

HET_GROUPS = "--het-group=0,1"  # of srun: one step over both components
LEAST_NODES = 2


class Component(NamedTuple):
    """What a component of the step wants; a plain step has one.

    Attributes:
        nodes: how many nodes; None for all that the component has when the first step starts.
        min_nodes: with how many it may go on; None for `nodes`.
        tasks_per_node: tasks on each, at most where `tasks` is given.
        tasks: how many tasks on all nodes together; None for `tasks_per_node` on each.
    """

    nodes: Optional[int]
    min_nodes: Optional[int] = None
    tasks_per_node: int = 1
    tasks: Optional[int] = None

    @property
    def least(self) -> int:
        """The least number of nodes."""
        return self.min_nodes or self.nodes or 1

    def layout(self, nodes: Sequence[str]) -> List[str]:
        """Returns the node of each task, by rank."""
        ranks = [name for name in nodes for _ in range(self.tasks_per_node)]
        return ranks[: self.tasks]

    def options(self, nodes: Sequence[str]) -> List[str]:
        """Returns srun's options for these nodes."""
        tasks = len(nodes) * self.tasks_per_node if self.tasks is None else self.tasks
        return [
            f"--nodes={len(nodes)}",
            f"--ntasks={tasks}",
            f"--ntasks-per-node={self.tasks_per_node}",
            f"--nodelist={compress_hostlist(nodes)}",
        ]


Chosen = Tuple[Tuple[str, ...], ...]  # by component its nodes


def components(
    nodes: Optional[int],
    min_nodes: Optional[int],
    tasks_per_node: int,
    ps_nodes: Optional[int],
    ps_tasks: Optional[int],
) -> List[Component]:
    """Returns the components: the workers', and that of the chief and the parameter servers."""
    workers = Component(nodes, min_nodes, tasks_per_node)
    if ps_nodes is None or ps_tasks is None:
        return [workers]
    return [workers, Component(ps_nodes, None, -(-ps_tasks // ps_nodes), ps_tasks)]


def command(
    words: Sequence[str], wanted: Sequence[Component], chosen: Sequence[Sequence[str]]
) -> List[str]:
    """Returns the command line of srun with the options that choose its nodes.

    They come first, so that an option of the user's own counts; SLURM_NTASKS is that of all nodes.
    """
    program, *rest = words
    if len(wanted) == 1:
        return [program, *wanted[0].options(chosen[0]), *rest]
    rest = [word for i, word in enumerate(rest) if word != HET_GROUPS or HET_GROUPS in rest[:i]]
    parts: List[str] = []
    for number, (one, nodes) in enumerate(zip(wanted, chosen)):
        colon = [":"] if number else []
        parts += [*colon, f"--het-group={number}", *one.options(nodes), *rest]
    return [program, *parts]


def first_ranks(wanted: Sequence[Component], chosen: Sequence[Sequence[str]]) -> Dict[str, int]:
    """Returns by node the first rank of its component."""
    found: Dict[str, int] = {}
    first = 0
    for one, nodes in zip(wanted, chosen):
        found.update(dict.fromkeys(nodes, first))
        first += len(one.layout(nodes))
    return found
