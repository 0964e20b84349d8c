"""Which port every task listens at.

The port of a task depends on its local rank, so that no two tasks of a node have the same, and on
variables that are the same in all tasks, so that every task can compute all ports.
"""

from __future__ import annotations

import itertools
import zlib
from numbers import Integral
from typing import NamedTuple, Optional, Sequence

from slurm_resolver.errors import AddressError
from slurm_resolver.log import warn
from slurm_resolver.slurm.step import SlurmStep

DEFAULT_PORT = 8888  # the first port in TensorFlow's own resolver

# The range of derived ports lies between the ports of well-known services and the ephemeral ports,
# which begin at 32768 on Linux: the kernel may give one of those to any process at any time.
_FIRST_PORT, _LAST_PORT = 12_288, 32_767
# A step gets a block of at least this many ports, so that most steps have blocks of the same size,
# and two such blocks are either the same or do not overlap.
_SMALLEST_BLOCK = 8
_NUM_MEETING_PORTS = 2048


class Ports(NamedTuple):
    """The ports of a step.

    Attributes:
        by_local_rank: on every node the port of the task with local rank i is number i.
        source: where the ports come from, as `slurm-resolver show` prints it.
        meeting_port: the port of the step's coordination service.
        offsets: of a heterogeneous step whose components have ports of their own: where those of
            each component begin in `by_local_rank`; () where all nodes have the same ports.
    """

    by_local_rank: Sequence[int]
    source: str
    meeting_port: int
    offsets: Sequence[int] = ()


def choose_ports(
    step: SlurmStep,
    max_tasks_per_node: int,
    port_base: Optional[int] = None,
    most_tasks_of_components: Sequence[int] = (),
) -> Ports:
    """Returns one port for each local rank; `most_tasks_of_components` are those on any one node.

    They come from the first of these that is set: `port_base` and the ports after it; the ports
    that Slurm reserved for the step, which no other step on these nodes gets; a block of ports
    derived from job id and step id; 8888 and the ports after it. For each component of a
    heterogeneous step Slurm reserves ports on its own nodes only: these are used where it can be
    told which they are, which is not so in a plain allocation (``srun … : …``).

    Raises:
        AddressError: for a `port_base` that is not a port, or too high for the number of tasks.
    """
    if port_base is not None:
        given = _ports_from(port_base, max_tasks_per_node, f"port_base={port_base!r}")
        return Ports(given, "port_base", _port_beside(given))
    if step.reserved_ports is not None and most_tasks_of_components:
        ports = _ports_of_components(step, most_tasks_of_components)
        if ports is not None:
            return ports
    elif step.reserved_ports is not None and not step.is_component:
        reserved = tuple(dict.fromkeys(step.reserved_ports))
        if len(reserved) >= max_tasks_per_node:
            task_ports = reserved[:max_tasks_per_node]
            # By default Slurm reserves one port more than there are tasks on a node.
            spare = reserved[max_tasks_per_node : max_tasks_per_node + 1]
            # In a heterogeneous job it may be reserved on the nodes of another component only.
            use_spare = spare and not step.components
            meeting_port = spare[0] if use_spare else derive_meeting_port(step)
            return Ports(task_ports, "SLURM_STEP_RESV_PORTS", meeting_port)
        warn(
            "SLURM_STEP_RESV_PORTS has %d ports for up to %d tasks on a node, and is not used. "
            "Start with srun --resv-ports=%d to have enough",
            len(reserved),
            max_tasks_per_node,
            max_tasks_per_node,
        )
    if step.job_id is not None:
        first = _derive_first_port(step.job_id or "", step.step_id or "", max_tasks_per_node)
        derived = range(first, first + max_tasks_per_node)
        return Ports(derived, "SLURM_JOB_ID and SLURM_STEP_ID", derive_meeting_port(step))
    default = _ports_from(DEFAULT_PORT, max_tasks_per_node, "the default port")
    return Ports(default, "default", _port_beside(default))


def _ports_of_components(step: SlurmStep, most_tasks: Sequence[int]) -> Optional[Ports]:
    """Returns the ports of each component; None where they cannot be told apart.

    SLURM_STEP_RESV_PORTS holds those of all components. Slurm reserves for one after the other, and
    as many as the component has tasks on any node, and one more (slurmctld's port_mgr.c): so where
    these numbers add up, and the ports follow each other, each component has the next few.
    """
    reserved = step.reserved_ports or ()
    ends = list(itertools.accumulate(most + 1 for most in most_tasks))
    if len(reserved) != ends[-1] or list(reserved) != list(range(reserved[0], reserved[-1] + 1)):
        return None
    meeting_port = derive_meeting_port(step)
    return Ports(reserved, "SLURM_STEP_RESV_PORTS", meeting_port, (0, *ends[:-1]))


def _port_beside(ports: Sequence[int]) -> int:
    """Returns the port after the last one, or before the first one if that is the highest."""
    return ports[-1] + 1 if ports[-1] < 65535 else ports[0] - 1


def _ports_from(base: int, count: int, source: str) -> range:
    if isinstance(base, bool) or not isinstance(base, Integral) or not 1 <= base <= 65535:
        raise AddressError(f"{source}: expected a port, a whole number from 1 to 65535.")
    if base + count - 1 > 65535:
        raise AddressError(
            f"{source} and {count} tasks on a node need the ports up to {base + count - 1}; "
            f"expected none above 65535. Use a port_base of at most {65536 - count}."
            if count < 65536
            else f"{count} tasks on one node; expected at most 65535, as each needs a port."
        )
    return range(int(base), int(base) + count)


def _derive_first_port(job_id: str, step_id: str, count: int) -> int:
    """Returns the first port of the block of this job and step.

    Jobs and steps that run on a node at the same time mostly have ids that follow each other. Such
    jobs get neighbouring blocks, and such steps of a job blocks that are the golden section of the
    range apart: never the same block.
    """
    block = _SMALLEST_BLOCK
    while block < count:
        block *= 2
    blocks = (_LAST_PORT - _FIRST_PORT + 1) // block
    if not blocks:
        return _ports_from(_FIRST_PORT, count, "ports derived from SLURM_JOB_ID")[0]
    number = _id_as_number(job_id) + _id_as_number(step_id) * round(blocks * 0.618)
    return _FIRST_PORT + number % blocks * block


def derive_meeting_port(step: SlurmStep) -> int:
    """Returns a port below those of the tasks: in the blocks it could need a larger block."""
    job, step_number = _id_as_number(step.job_id or ""), _id_as_number(step.step_id or "")
    number = job + step_number * round(_NUM_MEETING_PORTS * 0.618)
    return _FIRST_PORT - _NUM_MEETING_PORTS + number % _NUM_MEETING_PORTS


def _id_as_number(text: str) -> int:
    """Returns an id as a number; one that has letters, as step "batch", from its bytes."""
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    return zlib.crc32(text.encode())
