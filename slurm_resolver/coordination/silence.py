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
from typing import Any

from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.wording import shorten

TICK_SECONDS = 0.5  # between two looks of a task at whether the service is silent
_LONGEST_TICK = 1.0


class Silence:
    """What a process knows of the answers of other processes, or of the ranks of these."""

    # A clock that stands still while this process is stopped itself: it blames no other then.
    now = 0.0

    def __init__(self, address: ServiceAddress) -> None:
        self._address = address
        self._ticked_at = monotonic()
        # since when a message of them is due
        self._since: dict[Any, float] = {}
        self._named: set[Any] = set()

    def await_answer(self, who: Any) -> None:
        """Expects a message, unless it is expected already."""
        self._since.setdefault(who, self.now)

    def heard(self, who: Any) -> bool:
        """Takes a message, or the end of a connection; returns whether `find` has returned it."""
        self._since.pop(who, None)
        was_named = who in self._named
        self._named.discard(who)
        return was_named

    def find(self) -> list[Any]:
        """Returns those that have been silent for the grace, each once. Call it twice a second."""
        at = monotonic()
        self.now += min(at - self._ticked_at, _LONGEST_TICK)
        self._ticked_at = at
        new = [who for who in self.silent_for(self._address.grace) if who not in self._named]
        self._named.update(new)
        return new

    def silent_for(self, seconds: float) -> list[Any]:
        """Returns those whose message has been due for longer than this."""
        return [who for who, since in self._since.items() if self.now - since > seconds]


def describe(who: Sequence[str], address: ServiceAddress) -> str:
    """Returns the line that names silent processes."""
    return (
        f"no answer for {address.grace:g} s from {shorten(who)}: stopped, or hanging "
        f"in C code. The training ends if this lasts {address.silence:g} s"
    )


def why_lost(address: ServiceAddress) -> str:
    """Returns why a silent process is lost."""
    return f"its process has not answered for {address.silence:g} s: stopped, or hanging in C code"
