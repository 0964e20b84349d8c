"""Which port every task listens on, and why that one.

A port depends on the local rank alone, so that tasks of one node never share one, and on what every
task of the step sees alike, so that all of them know all ports.
"""

from __future__ import annotations

from numbers import Integral
from typing import NamedTuple, Optional, Sequence

from slurm_resolver.errors import AddressError
from slurm_resolver.log import warn
from slurm_resolver.slurm.step import SlurmStep

DEFAULT_PORT = 8888  # what TensorFlow's own resolver starts from

# Ports derived from job and step lie between the well-known services and the ephemeral ports,
# which start at 32768 on Linux: any process may be given one of those at any time.
_FIRST, _LAST = 12_288, 32_767
# Jobs get blocks of at least this many ports: whether two jobs have one task a node or sixteen,
# their blocks then are of one size, and blocks of one size never half overlap.
_SMALLEST_BLOCK = 8
_MEETINGS = 2048


class Ports(NamedTuple):
    """The port of the task with local rank i on any node is ``by_local_rank[i]``.

    `source` says where they come from, as `slurm-resolver show` prints it. `meeting` is one more,
    for the tasks to meet at before TensorFlow starts.
    """

    by_local_rank: Sequence[int]
    source: str
    meeting: int


def choose_ports(
    step: SlurmStep, max_tasks_per_node: int, port_base: Optional[int] = None
) -> Ports:
    """Returns one port for each local rank.

    The first of these that there is: `port_base` and the ports after it; the ports that Slurm
    reserved for the step (no other step on these nodes gets them); a block derived from job and
    step id; 8888 and the ports after it.

    Raises:
        AddressError: for a `port_base` that is no port, or that leaves a task without one.
    """
    if port_base is not None:
        given = _from(port_base, max_tasks_per_node, f"port_base={port_base!r}")
        return Ports(given, "port_base", _after(given))
    if step.reserved_ports is not None:
        reserved = tuple(dict.fromkeys(step.reserved_ports))
        if len(reserved) >= max_tasks_per_node:
            own = reserved[:max_tasks_per_node]
            # Slurm reserves one more than there are tasks on a node, unless told otherwise.
            spare = reserved[max_tasks_per_node : max_tasks_per_node + 1]
            meeting = spare[0] if spare else _derive_meeting(step)
            return Ports(own, "SLURM_STEP_RESV_PORTS", meeting)
        warn(
            "SLURM_STEP_RESV_PORTS has %d ports for up to %d tasks on a node, and is not used; "
            "start with srun --resv-ports=%d to have enough",
            len(reserved),
            max_tasks_per_node,
            max_tasks_per_node,
        )
    if step.job_id is not None:
        first = _derive(step.job_id, step.step_id or "", max_tasks_per_node)
        derived = range(first, first + max_tasks_per_node)
        return Ports(derived, "SLURM_JOB_ID and SLURM_STEP_ID", _derive_meeting(step))
    default = _from(DEFAULT_PORT, max_tasks_per_node, "the default port")
    return Ports(default, "default", _after(default))


def _after(ports: Sequence[int]) -> int:
    """The meeting's port beside the tasks' own: the one after them, or before them."""
    return ports[-1] + 1 if ports[-1] < 65535 else ports[0] - 1


def _from(base: int, count: int, what: str) -> range:
    if isinstance(base, bool) or not isinstance(base, Integral) or not 1 <= base <= 65535:
        raise AddressError(f"{what}: expected a port, a whole number from 1 to 65535.")
    if base + count - 1 > 65535:
        raise AddressError(
            f"{what} and {count} tasks on a node need the ports up to {base + count - 1}; expected "
            f"none above 65535. Use a port_base of at most {65536 - count}."
            if count < 65536
            else f"{count} tasks on one node; expected at most 65535, a port each."
        )
    return range(int(base), int(base) + count)


def _derive(job_id: str, step_id: str, count: int) -> int:
    """Returns the first port of the block of this job and step.

    Jobs that follow each other get blocks that follow each other, and the steps of a job lie the
    golden section of the range apart: what runs on a node at the same time mostly has neighbouring
    numbers, and then never the same block.
    """
    block = _SMALLEST_BLOCK
    while block < count:
        block *= 2
    blocks = (_LAST - _FIRST + 1) // block
    if not blocks:
        return _from(_FIRST, count, "ports derived from SLURM_JOB_ID")[0]
    number = _number(job_id) + _number(step_id) * round(blocks * 0.618)
    return _FIRST + number % blocks * block


def _derive_meeting(step: SlurmStep) -> int:
    """One port a step, below those of the tasks, so that their blocks stay as small as they are."""
    number = _number(step.job_id or "") + _number(step.step_id or "") * round(_MEETINGS * 0.618)
    return _FIRST - _MEETINGS + number % _MEETINGS


def _number(text: str) -> int:
    """An id as a number; ids that are none (a step named "batch") get one from their letters."""
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    return int.from_bytes(text.encode()[:64], "big")
