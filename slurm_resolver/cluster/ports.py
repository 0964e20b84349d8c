"""Which port every task listens at.

A task's port follows from its local rank, and from variables that are the same in all tasks, so
that every task can compute all ports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_resolver.errors import AddressError
from slurm_resolver.log import warn
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.whole_number import LAST_PORT, read_whole_number, whole_number

# Derived ports lie between the ports of well-known services and Linux's ephemeral ports, which the
# kernel may give to any process.
_FIRST_DERIVED = 12_288
_LAST_DERIVED = 32_767
_NUM_SERVICE_PORTS = 2048


class Ports(NamedTuple):
    """The ports of a step.

    Attributes:
        by_local_rank: on every node, the port of the task with this local rank.
        source: where the ports come from, as `slurm-resolver show` prints it.
        service_port: the port of the step's coordination service.
    """

    by_local_rank: Sequence[int]
    source: str
    service_port: int


def choose_ports(
    step: SlurmStep,
    max_tasks_per_node: int,
    port_base: int | None = None,
    is_heterogeneous: bool = False,
) -> Ports:
    """Returns one port for each local rank, from the first of these sources:

    `port_base` and the ports after it; the ports that Slurm reserved for the step; a block derived
    from job id and step id; 8888 and the ports after it. Slurm reserves the ports of a
    heterogeneous step for each component, on its own nodes only, so they are not used.

    Raises:
        AddressError: for a `port_base` that is not a port, or too high for the number of tasks.
    """
    service_port = derive_service_port(step)
    if (
        step.reserved_ports is not None
        and port_base is None
        and not is_heterogeneous
        and not step.is_component
    ):
        reserved = tuple(dict.fromkeys(step.reserved_ports))
        if len(reserved) >= max_tasks_per_node:
            # By default Slurm reserves one port more than there are tasks on a node; in a
            # heterogeneous job perhaps on the nodes of another component only.
            if len(reserved) > max_tasks_per_node and not step.components:
                service_port = reserved[max_tasks_per_node]
            return Ports(reserved[:max_tasks_per_node], "SLURM_STEP_RESV_PORTS", service_port)
        warn(
            "SLURM_STEP_RESV_PORTS has fewer ports (%d) than a node has tasks (up to %d), and is "
            "not used. Start with srun --resv-ports=%d to have enough",
            len(reserved),
            max_tasks_per_node,
            max_tasks_per_node,
        )
    source = "port_base"
    base = port_base
    if port_base is None and step.job_id is None:
        source = "default"
        base = 8888  # the first port in TensorFlow's own resolver
    elif port_base is None:
        # Jobs that run on a node at the same time mostly have consecutive ids, and so have their
        # steps. Consecutive jobs get neighbouring blocks of ports. Consecutive steps of a job get
        # blocks that are the golden section of the range apart.
        # Most steps have the smallest blocks. Two such blocks are the same or do not overlap.
        block = max(8, 1 << (max_tasks_per_node - 1).bit_length())
        blocks = max(1, (_LAST_DERIVED - _FIRST_DERIVED + 1) // block)
        source = "SLURM_JOB_ID and SLURM_STEP_ID"
        base = _FIRST_DERIVED + _number_of_step(step, blocks) * block
    last_base = LAST_PORT + 1 - max_tasks_per_node
    first = whole_number(base, 1, last_base)
    if first is None:
        raise AddressError(
            f"{source}={base!r}: expected a port, a whole number from 1 to {last_base}, as up to "
            f"{max_tasks_per_node} tasks on a node need a port each."
        )
    last = first + max_tasks_per_node - 1
    if source in ("port_base", "default"):  # no block of ports: beside the ports of the tasks
        service_port = last + 1 if last < LAST_PORT else first - 1
    return Ports(range(first, last + 1), source, service_port)


def derive_service_port(step: SlurmStep) -> int:
    """Returns a port below those of the tasks: in the blocks it could need a larger block."""
    return _FIRST_DERIVED - _NUM_SERVICE_PORTS + _number_of_step(step, _NUM_SERVICE_PORTS)


def _number_of_step(step: SlurmStep, count: int) -> int:
    """Returns a number below `count`, different for jobs, and steps of a job, in succession."""
    job = read_whole_number(step.job_id or "") or 0
    own = read_whole_number(step.step_id or "") or 0
    return (job + own * round(count * 0.618)) % count
