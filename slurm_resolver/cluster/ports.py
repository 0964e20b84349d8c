"""Which port every task listens at.

A task's port follows from its local rank, and from variables that are the same in all tasks, so
that every task can compute all ports.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from numbers import Integral
from typing import NamedTuple

from slurm_resolver.errors import AddressError
from slurm_resolver.log import warn
from slurm_resolver.slurm.step import SlurmStep

# Derived ports lie between the ports of well-known services and Linux's ephemeral ports, which the
# kernel may give to any process.
_FIRST_PORT = 12_288
_LAST_PORT = 32_767
_NUM_MEETING_PORTS = 2048


class Ports(NamedTuple):
    """The ports of a step.

    Attributes:
        by_local_rank: on every node, the port of the task with this local rank.
        source: where the ports come from, as `slurm-resolver show` prints it.
        meeting_port: the port of the step's coordination service.
    """

    by_local_rank: Sequence[int]
    source: str
    meeting_port: int


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
            spare = None if step.components else reserved[max_tasks_per_node:][:1]
            meeting_port = spare[0] if spare else derive_meeting_port(step)
            return Ports(reserved[:max_tasks_per_node], "SLURM_STEP_RESV_PORTS", meeting_port)
        warn(
            "SLURM_STEP_RESV_PORTS has %d ports for up to %d tasks on a node, and is not used. "
            "Start with srun --resv-ports=%d to have enough",
            len(reserved),
            max_tasks_per_node,
            max_tasks_per_node,
        )
    source = "default"
    base = 8888  # the first port in TensorFlow's own resolver
    if port_base is not None:
        source = "port_base"
        base = port_base
    elif step.job_id is not None:
        # Jobs that run on a node at the same time mostly have consecutive ids, and so have their
        # steps. Consecutive jobs get neighbouring blocks of ports. Consecutive steps of a job get
        # blocks that are the golden section of the range apart.
        # Most steps have the smallest blocks. Two such blocks are the same or do not overlap.
        block = 8
        while block < max_tasks_per_node:
            block *= 2
        blocks = max(1, (_LAST_PORT - _FIRST_PORT + 1) // block)
        source = "SLURM_JOB_ID and SLURM_STEP_ID"
        base = _FIRST_PORT + _number_of_step(step, blocks) * block
    if isinstance(base, bool) or not isinstance(base, Integral) or not 1 <= base <= 65535:
        raise AddressError(f"{source}={base!r}: expected a port, a whole number from 1 to 65535.")
    end = int(base) + max_tasks_per_node
    if end > 65536:
        raise AddressError(
            f"{source}={base!r} and {max_tasks_per_node} tasks on a node need the ports up to "
            f"{end - 1}; expected none above 65535. Use a lower port_base, or start fewer tasks on "
            "each node."
        )
    # A port beside those of the tasks, or in no block: a larger block could contain it.
    meeting_port = end if end < 65536 else base - 1
    if source == "SLURM_JOB_ID and SLURM_STEP_ID":
        meeting_port = derive_meeting_port(step)
    return Ports(range(int(base), end), source, meeting_port)


def derive_meeting_port(step: SlurmStep) -> int:
    """Returns a port below those of the tasks: in the blocks it could need a larger block."""
    return _FIRST_PORT - _NUM_MEETING_PORTS + _number_of_step(step, _NUM_MEETING_PORTS)


def _number_of_step(step: SlurmStep, count: int) -> int:
    """Returns a number below `count`, different for jobs, and steps of a job, in succession."""
    job = _id_as_number(step.job_id or "")
    own = _id_as_number(step.step_id or "")
    return (job + own * round(count * 0.618)) % count


def _id_as_number(text: str) -> int:
    """Returns an id as a number; one that has letters, as step "batch", from its bytes."""
    return int(text) if re.fullmatch("[0-9]{1,19}", text) else zlib.crc32(text.encode())
