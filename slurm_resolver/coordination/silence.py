"""Who is silent: does not answer, although the network to its node works.

The service pings every process, and a thread of each process answers. It cannot if the process is
stopped, as by SIGSTOP, or hangs in C code that holds Python's interpreter lock. The service is such
a thread itself: if no more pings come, its process is silent.

| not answered for | what happens |
|---|---|
| the grace | every task names the process in its log |
| `ServiceAddress.silence` | the process is lost, and the training ends in all tasks |

A shorter silence changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.wording import shorten

TICK_SECONDS = 0.5  # between two looks of a task at whether the service is silent
_LONGEST_TICK = 1.0


class Clock:
    """A clock that stands still while this process is stopped itself: it blames no other then."""

    now = 0.0

    def __init__(self) -> None:
        self._ticked_at = monotonic()

    def tick(self) -> float:
        """Moves the clock on, and returns its time. Call it twice a second."""
        at = monotonic()
        self.now += min(at - self._ticked_at, _LONGEST_TICK)
        self._ticked_at = at
        return self.now


def describe(who: Sequence[str], address: ServiceAddress) -> str:
    """Returns the line that names silent processes."""
    return (
        f"no answer for {address.grace:g} s from {shorten(who)}: stopped, or hanging "
        f"in C code. The training ends if this lasts {address.silence:g} s"
    )


def why_lost(address: ServiceAddress) -> str:
    """Returns why a silent process is lost."""
    return f"its process has not answered for {address.silence:g} s: stopped, or hanging in C code"
