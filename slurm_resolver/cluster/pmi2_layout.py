"""What the tasks of a step tell each other by PMI-2, where the step has it and they may use it.

Slurm's own word of the layout there, PMI_process_mapping, is not used: on live clusters it is right
for cyclic and plane distributions, which variables tell as well, and wrong for most of what they do
not tell. Of a block distribution it follows the list of the nodes, where topology orders them by
rank (26.05); of a heterogeneous step the sorted list of all; of an arbitrary one it is right from
24.11 on, and not on 22.05. No task can see which of these holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence, Tuple

from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.errors import RendezvousError
from slurm_resolver.rendezvous.pmi2 import Pmi2Task, has_store
from slurm_resolver.slurm.mpi_use import find_mpi
from slurm_resolver.slurm.step import SlurmStep

if TYPE_CHECKING:
    from slurm_resolver.rendezvous.first_half import FirstHalf

_PLACE = "place/"  # and the number of a node in the step's list: a key of PMI-2's store


def find_task(step: SlurmStep, options: ClusterOptions) -> Optional[Pmi2Task]:
    """Returns what Slurm tells this task of PMI-2; None where the tasks of the step do not use it.

    All tasks must come to the same answer, or those with a store wait for the others: all that is
    asked here is the same in all tasks that srun has started alike. `why_no_store` tells the
    reason. Nothing is used of it yet.

    Args:
        step: the task's variables.
        options: `layout` other than "auto" forbids it; `starts_program` does as well, unless
            SLURM_RESOLVER_PMI2=on.
    """
    return _task_of(step) if why_no_store(step, options) is None else None


def why_no_store(step: SlurmStep, options: ClusterOptions) -> Optional[str]:
    """Returns why the tasks of this step do not use PMI-2; None where they do, if it is there."""
    if step.pmi2 == "off":
        return "SLURM_RESOLVER_PMI2=off"
    if options.layout != "auto":
        return f"layout={options.layout!r}"
    if not step.is_live or step.mpi_run is not None or step.launcher is not None:
        return "srun did not start this process"
    if step.is_component:  # live, 22.05 to 26.05: its fence never ends
        return "Slurm's PMI-2 does not reach over the components of this step"
    for name, value, expected in (
        ("PMI_RANK", step.pmi_rank, step.rank),
        ("PMI_SIZE", step.pmi_size, step.num_tasks),
    ):
        if value is None or value != str(expected):  # unset, or of another step
            return f"{name} is {value or 'not set'}: the step has no PMI-2 (srun --mpi=pmi2)"
    if not (step.pmi_fd or "").isdecimal():
        return f"PMI_FD is {step.pmi_fd or 'not set'}"
    if step.node_ranks is None or step.node_name is None:
        return "SLURM_GTIDS or SLURMD_NODENAME is not set"
    if step.pmi2 == "on":
        return None
    if has_store():  # MPI that has been loaded since changes nothing any more
        return None
    if options.starts_program:
        return "the program that is started may use MPI"
    return find_mpi(step.task_pid)


def read_places(
    half: FirstHalf, step: SlurmStep, nodes: Sequence[str]
) -> Dict[int, Dict[str, Any]]:
    """Returns by rank its node, local rank and SLURM_NODEID, as the first task of each node tells.

    Args:
        half: what the tasks have shared by PMI-2.
        step: the task's variables.
        nodes: the step's nodes, in the same order in all tasks.

    Raises:
        RendezvousError: where what they tell cannot be.
    """
    size = step.require(SlurmStep.num_tasks)
    if step.node_name not in nodes:  # the others miss what this node's first task would have told
        raise RendezvousError(
            f"rank {step.rank} runs on {step.node_name!r}, which SLURM_STEP_NODELIST does not name"
        )
    told = half.read([f"{_PLACE}{index}" for index in range(len(nodes))])
    places: Dict[int, Dict[str, Any]] = {}
    for node, value in zip(nodes, told.values()):
        node_id, _, runs = value.partition(" ")
        for local_rank, rank in enumerate(_from_runs(runs)):
            if rank in places or not 0 <= rank < size:
                raise RendezvousError(
                    f"rank {rank} of {size} runs on {node}, as its first task tells by PMI-2, and "
                    f"on {places.get(rank, {}).get('node', 'no other')}"
                )
            place = {"node": node, "local_rank": local_rank}
            places[rank] = {**place, "node_id": int(node_id) if node_id.isdecimal() else None}
    if len(places) != size:
        raise RendezvousError(
            f"the first tasks of the nodes tell of {len(places)} tasks by PMI-2; expected {size}. "
            "A task may run with variables of another step"
        )
    return places


def _task_of(step: SlurmStep) -> Pmi2Task:
    fd, rank = step.require(SlurmStep.pmi_fd), step.require(SlurmStep.rank)
    size, node_ranks = step.require(SlurmStep.num_tasks), step.require(SlurmStep.node_ranks)
    address = step.launch_node_address or ""
    return Pmi2Task(int(fd), rank, size, node_ranks, address, _own_place(step))


def _own_place(step: SlurmStep) -> Sequence[Tuple[str, str]]:
    """Returns what this task tells of its node, by key: its first one does, for all."""
    ranks, name = step.require(SlurmStep.node_ranks), step.node_name
    if step.rank != min(ranks) or name not in (step.nodes or ()):
        return ()
    index = (step.nodes or ()).index(name)
    return ((f"{_PLACE}{index}", f"{step.node_id} {_in_runs(sorted(ranks))}"),)


def _in_runs(ranks: Sequence[int]) -> str:
    """Returns ascending ranks as a short text: ``4+3*2`` for 4, 7, 10.

    A distribution places a task's neighbours at even distances, and a value has few bytes.
    """
    runs = []
    start = 0
    while start < len(ranks):
        end = start + 1
        step = ranks[end] - ranks[start] if end < len(ranks) else 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        runs.append(f"{ranks[start]}+{step}*{end - start - 1}")
        start = end
    return ",".join(runs)


def _from_runs(text: str) -> Sequence[int]:
    ranks = []
    for run in text.split(","):
        start, _, rest = run.partition("+")
        step, _, more = rest.partition("*")
        ranks += [int(start) + int(step) * i for i in range(int(more) + 1)]
    return ranks
