"""What the tasks of a step share by PMI-2 before they meet: a secret, where they meet, and more.

A fence of PMI-2 ends when all tasks have come to it, tells nobody who is missing, and cannot be
taken back. So a thread goes to it, once in a process, however often the tasks meet; and where it
does not end at once they meet without it, which tells who is missing. As soon as it ends, which it
does in all tasks, they leave that meeting for one that admits only who has the secret. What else a
task gives at the fence, `Pmi2Task.given`, the others can read from then on.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from typing import Callable, Dict, Optional, Sequence, Tuple

from slurm_resolver.errors import RendezvousError
from slurm_resolver.rendezvous.own_addresses import own_addresses
from slurm_resolver.rendezvous.pmi2 import Pmi2Store, Pmi2Task, open_store
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.rendezvous.secret import explain_missing_pmi2, remember_shared
from slurm_resolver.rendezvous.task_claim import claim_task

KEY = "meet"  # of what `make_offer` returns, in the store

_SECRET_BYTES = 32
_OFFER = re.compile(r"[0-9a-f]{64}( [0-9a-fA-F.:]+)*")
_LONGEST_SECONDS = 1e6


class FirstHalf:
    """What this process shares with the other tasks of its step by PMI-2.

    Attributes:
        addresses: at which the meeting point may be reached, once it is shared.
        problem: why it will never be shared; None while it may.
    """

    def __init__(self) -> None:
        self.problem: Optional[str] = None
        self.addresses: Tuple[str, ...] = ()
        self._key = b""
        self._store: Optional[Pmi2Store] = None
        self._given_up = False
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._wake: Callable[[], None] = lambda: None

    @property
    def is_shared(self) -> bool:
        """Whether all tasks have come to the fence, and this one has what they share."""
        return bool(self._key)

    @property
    def is_pending(self) -> bool:
        """Whether it may still come to be shared."""
        return not self._ended.is_set()

    def begin(self, task: Pmi2Task, is_host: bool) -> None:
        """Goes to the fence in a thread; the meeting point makes what all get."""
        thread = threading.Thread(
            target=self._run, args=(task, is_host), name="slurm_resolver pmi2", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # no thread is to be had
            self._end(problem=str(error))

    def _run(self, task: Pmi2Task, is_host: bool) -> None:
        try:
            store = open_store(task)
            if store is None:
                self._end(problem="this process cannot use the socket PMI_FD")
                return
            given = dict(task.given)
            if is_host:
                given[KEY] = make_offer(task)
            offer = store.share(given, [KEY], _LONGEST_SECONDS)[KEY]
            self._store = store
            self.take_offer(offer)
        except (RendezvousError, ValueError, OSError) as error:
            self._end(problem=str(error))

    def take_offer(self, text: str) -> None:
        """Takes what the meeting point has made.

        Raises:
            RendezvousError: where it is not what `make_offer` returns.
        """
        if not _OFFER.fullmatch(text):
            raise RendezvousError(
                f"the meeting point shares {text!r:.60} by PMI-2: all tasks need the same version "
                "of slurm_resolver."
            )
        key, *addresses = text.split()
        with self._lock:
            if not self._given_up:
                self.addresses = tuple(addresses)
                self._key = key.encode()
        self._end()

    def _end(self, problem: Optional[str] = None) -> None:
        self.problem = self.problem or problem
        self._ended.set()
        self._wake()

    def wait(self, seconds: float) -> bool:
        """Returns whether it is shared, after at most so many seconds; then the secret is used."""
        self._ended.wait(seconds)
        if self.is_shared:
            remember_shared(self._key)
        elif self.problem is not None:
            explain_missing_pmi2(self.problem)
        return self.is_shared

    def read(self, wanted: Sequence[str]) -> Dict[str, str]:
        """Returns by key what tasks have given, once it is shared.

        Raises:
            RendezvousError: where nobody has given a key that is wanted, or slurmstepd does not
                answer as PMI-2 does.
        """
        assert self._store is not None
        return self._store.read(wanted)

    def wakes(self, wake: Callable[[], None]) -> None:
        """Has another thread call this when it ends."""
        self._wake = wake

    def give_up(self) -> None:
        """Leaves what may still be shared aside, as all tasks have met without it."""
        with self._lock:
            if not self.is_shared:
                self._given_up = True
                self._end(problem="the tasks had met before its fence ended")


def make_offer(task: Pmi2Task) -> str:
    """Returns what the meeting point shares: a new secret, and its addresses."""
    known = [task.srun_address] if task.srun_address else []
    return " ".join([secrets.token_hex(_SECRET_BYTES), *own_addresses(known)])


_halves: Dict[int, FirstHalf] = {}  # by process: a child by fork has none of its parent's


def find_half(rendezvous: Rendezvous) -> Optional[FirstHalf]:
    """Returns what this process shares with the others by PMI-2; it begins where it has not.

    None where the step has no PMI-2 that the tasks may use, and in a process that does not stand
    for its task.
    """
    half = _halves.get(os.getpid())
    if half is None and rendezvous.pmi2 is not None and claim_task(rendezvous):
        half = _halves[os.getpid()] = FirstHalf()
        half.begin(rendezvous.pmi2, rendezvous.is_host)
    return half
