"""Where the tasks of a step meet: at the task with local rank 0 on the step's first node.

Every task can compute this place alone, before it knows where the others run. Ranks of an mpirun
cannot: they meet at rank 0, and look for it on all nodes of the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Optional

from slurm_resolver.cluster.layout import Layout
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.errors import UnknownLayoutError
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.slurm.mpi_run import MpiRun
from slurm_resolver.slurm.step import SlurmStep

if TYPE_CHECKING:
    from slurm_resolver.rendezvous.pmi2 import Pmi2Task

HostOf = Callable[[str], str]  # from a node's name to the host to connect to


def rendezvous_without_layout(step: SlurmStep, port: int, host_of: HostOf) -> Rendezvous:
    """Returns the meeting point of a step whose layout is not known yet.

    Raises:
        EnvironmentValueError: where a variable that tells where this task runs is missing.
    """
    first_node = step.require(SlurmStep.nodes)[0]
    node, local_rank = step.require(SlurmStep.node_name), step.require(SlurmStep.local_rank)
    is_host = (node, local_rank) == (first_node, 0)
    rendezvous = _rendezvous(step, first_node, port, host_of, is_host)
    return rendezvous._replace(
        own_node=node, leads_node=local_rank == 0, nodes=tuple(step.nodes or ())
    )


def rendezvous_of_mpi_run(
    step: SlurmStep, mpi_run: MpiRun, port: int, host_of: HostOf
) -> Rendezvous:
    """Returns the meeting point of the ranks of an mpirun: at rank 0, whose node is not known.

    Raises:
        UnknownLayoutError: where not even the nodes that it may be on are known.
    """
    own_node = step.node_name if mpi_run.local_size == mpi_run.size else None
    nodes = mpi_run.candidates or ((own_node,) if own_node else ())
    if not nodes:
        raise UnknownLayoutError(
            f"{mpi_run.launcher}'s mpirun started this process as rank {mpi_run.rank} of "
            f"{mpi_run.size} on several nodes, and tells no rank where the others run; "
            "SLURM_JOB_NODELIST, which would tell where to ask, is not set. Start the program with "
            "srun, or mpirun inside an allocation (salloc, sbatch) and by Slurm, not by ssh."
        )
    first, *others = nodes
    rendezvous = _rendezvous(step, first, port, host_of, mpi_run.rank == 0)
    return rendezvous._replace(other_hosts=tuple(map(host_of, others)))


def rendezvous_of_layout(
    step: SlurmStep, layout: Layout, port: int, options: ClusterOptions
) -> Rendezvous:
    """Returns the meeting point of a step whose layout is known.

    Where Slurm's variables tell the task its node, they are used and not the layout: tasks that
    disagree on the layout have to meet as well, to find that out.
    """
    rank = step.require(SlurmStep.rank)
    local_rank = layout.local_rank_of[rank] if step.local_rank is None else step.local_rank
    if step.node_name is not None and step.nodes is not None:
        first_node, node = step.nodes[0], step.node_name
    else:
        first_node, node = layout.nodes[0], layout.nodes[layout.node_of[rank]]
    is_host = (node, local_rank) == (first_node, 0)
    rendezvous = _rendezvous(step, first_node, port, options.host_of, is_host)
    return rendezvous._replace(
        own_node=node,
        leads_node=local_rank == 0,
        nodes=tuple(step.nodes or layout.nodes),
        pmi2=_pmi2(step, options),
    )


def _pmi2(step: SlurmStep, options: ClusterOptions) -> Optional[Pmi2Task]:
    if step.pmi_fd is None:
        return None
    from slurm_resolver.cluster.pmi2_layout import find_task  # few steps need it

    return find_task(step, options)


def _rendezvous(
    step: SlurmStep, node: str, port: int, host_of: HostOf, is_host: bool
) -> Rendezvous:
    return Rendezvous(host_of(node), port, node, step.name, step.require(SlurmStep.rank), is_host)


def was_restarted(step: SlurmStep, rendezvous: Rendezvous) -> bool:
    """Returns whether this task's program was started again in its step: nobody meets it now."""
    return (step.task_restart or "").partition(" ")[0] == rendezvous.identity
