"""Which port every task listens at.

A task's port follows from its local rank, and from variables that are the same in all tasks, so
that every task can compute all ports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_resolver.errors import AddressError
from slurm_resolver.log import warn_once
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.slurm.whole_number import LAST_PORT, read_whole_number, whole_number

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

    by_local_rank: Sequence[int] = ()
    source: str = "SLURM_JOB_ID and SLURM_STEP_ID"
    service_port: int = 0


def choose_ports(
    step: SlurmStep,
    max_tasks_per_node: int,
    port_base: int | None = None,
) -> Ports:
    """Returns one port for each local rank, from the first of these sources:

    `port_base` and the ports after it; the ports that Slurm reserved for the step; a block derived
    from job id and step id; 8888 and the ports after it. Slurm reserves the ports of a
    heterogeneous step for each component, on its own nodes only, so they are not used.

    Raises:
        AddressError: for a `port_base` that is not a port, or too high for the number of tasks.
    """
    count = max_tasks_per_node
    base = port_base
    if base is None:
        is_heterogeneous = step.is_component or step.components_in_step
        reserved = () if is_heterogeneous else step.reserved_ports or ()
        if len(reserved) >= count:
            # By default Slurm reserves one port more than there are tasks on a node.
            spare = reserved[count:] or (derive_service_port(step),)
            return Ports(reserved[:count], "SLURM_STEP_RESV_PORTS", spare[0])
        if reserved:
            warn_once(
                f"SLURM_STEP_RESV_PORTS has fewer ports ({len(reserved)}) than a node has tasks "
                f"(up to {count}), and is not used. Start with srun --resv-ports={count} to have "
                "enough"
            )
        if step.job_id is not None:
            # Jobs that run on a node at the same time mostly have consecutive ids, and get
            # neighbouring blocks of ports. Most steps have the smallest blocks. Two such blocks are
            # the same or do not overlap.
            block = max(8, 1 << (count - 1).bit_length())
            blocks = max(1, (_LAST_DERIVED - _FIRST_DERIVED + 1) // block)
            first = _FIRST_DERIVED + _number_of_step(step, blocks) * block
            return Ports(range(first, first + count), service_port=derive_service_port(step))
        base = 8888  # as in TensorFlow's own resolver
    last_base = LAST_PORT + 1 - count
    if whole_number(base, 1, last_base) is None:
        raise AddressError(
            f"port_base={base!r}: expected a port, a whole number from 1 to {last_base}, as up to "
            f"{count} tasks on a node need a port each."
        )
    after = base + count
    return Ports(
        by_local_rank=range(base, after),
        source="default" if port_base is None else "port_base",
        service_port=after if after <= LAST_PORT else base - 1,
    )


def derive_service_port(step: SlurmStep) -> int:
    """Returns a port below those of the tasks: in the blocks it could need a larger block."""
    return _FIRST_DERIVED - _NUM_SERVICE_PORTS + _number_of_step(step, _NUM_SERVICE_PORTS)


def _number_of_step(step: SlurmStep, count: int) -> int:
    """Returns a number below `count`, different for jobs, and steps of a job, in succession.

    Consecutive steps of a job are the golden section of the range apart.
    """
    job = read_whole_number(step.job_id or "") or 0
    number = read_whole_number(step.step_id or "") or 0
    return (job + number * round(count * 0.618)) % count
