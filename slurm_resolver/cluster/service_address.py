"""The address of the step's coordination service, as every task computes it alone.

It listens in the task with local rank 0 on the step's first node.
"""

from __future__ import annotations

from typing import Callable

from slurm_resolver.cluster.layout import Layout
from slurm_resolver.coordination import NETWORK_GRACE, ServiceAddress
from slurm_resolver.slurm.step import SlurmStep

HostOf = Callable[[str], str]  # from a node's name to the host to connect to


def service_before_layout(
    step: SlurmStep, num_tasks: int, port: int, host_of: HostOf
) -> ServiceAddress:
    """Returns the address of the service of a step whose layout is not known yet.

    Raises:
        EnvironmentValueError: where a variable that says where this task runs is missing.
    """
    place = (step.require(SlurmStep.node_name), step.require(SlurmStep.local_rank))
    first_node = step.require(SlurmStep.nodes)[0]
    return _address(step, num_tasks, first_node, place == (first_node, 0), port, host_of)


def service_of_layout(
    step: SlurmStep, layout: Layout, port: int, host_of: HostOf
) -> ServiceAddress:
    """Returns the address of the service of a step whose layout is known.

    Where Slurm's variables say on which node this task runs, they count and not the layout: tasks
    that disagree on the layout have to find each other too.
    """
    rank = step.require(SlurmStep.rank)
    local_rank = layout.local_rank_of[rank] if step.local_rank is None else step.local_rank
    if step.node_name is not None and step.nodes is not None:
        first_node, node = step.nodes[0], step.node_name
    else:
        first_node, node = layout.nodes[0], layout.nodes[layout.node_of[rank]]
    serves = (node, local_rank) == (first_node, 0)
    return _address(step, layout.num_tasks, first_node, serves, port, host_of)


def identity_of(step: SlurmStep) -> str:
    """Returns what identifies this start of the step: a requeued job keeps its job and step id."""
    return f"{step.name} start {step.restart_count or 0}"


def was_restarted(step: SlurmStep) -> bool:
    """Whether this task's program was started again in its step; the others do not wait for it."""
    return (step.task_restart or "").rpartition(" ")[0] == identity_of(step)


def _address(
    step: SlurmStep, num_tasks: int, first_node: str, serves: bool, port: int, host_of: HostOf
) -> ServiceAddress:
    return ServiceAddress(
        host=host_of(first_node),
        port=port,
        node=first_node,
        identity=identity_of(step),
        num_tasks=num_tasks,
        rank=step.require(SlurmStep.rank),
        serves=serves,
        grace=step.network_grace or NETWORK_GRACE,
    )
