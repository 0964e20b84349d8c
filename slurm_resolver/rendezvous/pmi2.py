"""The store of keys and values that Slurm gives each step with PMI-2: ``srun --mpi=pmi2``.

slurmstepd holds the other end of a socket that each task has from its start: no port, no name and
no stranger is in the way of what the tasks tell each other there. What a task has put is there for
all after a fence, which ends when every task of the step has come to it (kvs.c in Slurm's source).

A fence cannot be taken back: after one that did not end in time the store is gone for the task. And
slurmstepd is easily hurt, so values are quoted and cut: ``;`` ends one, and one of more than 2,048
bytes overruns a buffer.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import threading
import time
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import quote, unquote

from slurm_resolver.errors import RendezvousError
from slurm_resolver.rendezvous.pmi2_wire import Pmi2Connection, find_problem

_KEY = re.compile(r"[A-Za-z0-9_./-]{1,32}")
_PREFIX = "slurm_resolver/"  # PMI-2's limit for a key is 63 characters
_PIECE = 960  # PMI-2's limit for a value is 1,023
_MAX_PIECES = 1000
_HERE_SECONDS = 10.0  # in which slurmstepd answers what it need not ask others for


class Pmi2Task(NamedTuple):
    """What Slurm tells a task of PMI-2: the socket PMI_FD, and whose it is.

    `rank` and `size` are the task's in its step, SLURM_PROCID and SLURM_STEP_NUM_TASKS, and
    `node_ranks` the ranks of all tasks of its node, SLURM_GTIDS. `srun_address` is where srun runs,
    SLURM_LAUNCH_NODE_IPADDR. `given` is what it tells the others by key: see `first_half`.
    """

    fd: int
    rank: int
    size: int
    node_ranks: Sequence[int] = ()
    srun_address: str = ""
    given: Sequence[Tuple[str, str]] = ()


class Pmi2Store:
    """The store of this process's step. `open_store` makes it, once in a process."""

    def __init__(self, task: Pmi2Task, timeout: float = _HERE_SECONDS) -> None:
        """Greets slurmstepd; `problem` says what came of it.

        Raises:
            RendezvousError: where it does not answer as PMI-2 does, or not in `timeout` seconds.
        """
        self.size = task.size
        self.task = task
        self._fences = 0
        self._lock = threading.Lock()
        self._connection = Pmi2Connection(task.fd)
        deadline = time.monotonic() + timeout
        if self._connection.greet(deadline):
            rest = f"pmijobid=0;pmirank={task.rank};threaded=FALSE;"
            told = self._ask("fullinit", rest, deadline)
            found = (told.get("rank"), told.get("size"))
            if found != (str(task.rank), str(task.size)):
                raise self._connection.fail(
                    f"slurmstepd takes this task for rank {found[0]} of {found[1]}; expected rank "
                    f"{task.rank} of {task.size}"
                )

    @property
    def problem(self) -> Optional[str]:
        """Why the store cannot be used any more; None while it can."""
        return self._connection.problem

    def share(
        self, values: Mapping[str, str], wanted: Sequence[str], timeout: float
    ) -> Dict[str, str]:
        """Gives `values` to all tasks of the step, and returns what they gave under `wanted`.

        All tasks must call it, equally often and in the same order, also one that gives nothing or
        wants nothing: it returns when all have called it. So one task can tell all a secret::

            store.share({"secret": secret} if rank == 0 else {}, ["secret"], 60)["secret"]

        It costs one fence, over Slurm's own tree, and a request for each kilobyte of `wanted`: give
        one value for a node, and not one for each task. Two tasks must not give the same key in one
        call. A later call may replace a value; one that is not replaced remains.

        Args:
            values: by key, any text of up to some 900,000 bytes; a key has 1 to 32 letters, digits
                and ``_./-``.
            wanted: keys that some task gives in this call, or has given in an earlier one.
            timeout: seconds in which all tasks have to call it.

        Returns:
            The values of `wanted`, by key.

        Raises:
            ValueError: for a key or a value that cannot be shared.
            RendezvousError: where nobody has given a key that is wanted; where not all tasks call
                it in time, with those of this node that are missing, or slurmstepd does not answer
                as PMI-2 does: the store is gone then, and `problem` says why.
        """
        pieces = {key: _cut(key, value) for key, value in values.items()}
        for key in wanted:
            _check_key(key)
        deadline = time.monotonic() + timeout
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise RendezvousError(
                "another thread of this process is in PMI-2's fence, to which not all tasks of the "
                "step have come yet"
            )
        try:
            # However little time there is, slurmstepd is given some: it may be busy.
            here = max(deadline, time.monotonic() + _HERE_SECONDS)
            for key, parts in pieces.items():
                for number, part in enumerate(parts):
                    self._ask("kvs-put", f"key={_PREFIX}{key}/{number};value={part};", here)
            self._fence(deadline)
        finally:
            self._lock.release()
        return self.read(wanted, max(_HERE_SECONDS, deadline - time.monotonic()))

    def read(self, wanted: Sequence[str], timeout: float = _HERE_SECONDS) -> Dict[str, str]:
        """Returns by key what tasks have given before the last fence.

        Raises:
            RendezvousError: where nobody has given a key that is wanted, or slurmstepd does not
                answer as PMI-2 does.
        """
        with self._lock:
            deadline = time.monotonic() + timeout
            return {key: self._get(key, deadline) for key in wanted}

    def finalize(self, timeout: float = 2.0) -> None:
        """Tells slurmstepd that this task is done with PMI-2. What was given remains."""
        if self._lock.acquire(blocking=False):  # else a thread is in a fence that has not ended
            with contextlib.suppress(RendezvousError):
                self._ask("finalize", "", time.monotonic() + timeout)
            self._lock.release()
        self.close()

    def close(self) -> None:
        """Leaves the store without a word."""
        self._connection.close()

    def _fence(self, deadline: float) -> None:
        self._fences += 1
        here = time.monotonic() + _HERE_SECONDS
        self._ask("info-putnodeattr", f"key={self._arrival(self.task.rank)};value=1;", here)
        try:
            self._connection.ask("kvs-fence", "", deadline)
        except TimeoutError:
            missing = "it does not tell who is missing"
            with contextlib.suppress(RendezvousError):
                missing = self._missing_on_node(time.monotonic() + 2)
            raise self._connection.fail(
                f"not all {self.size} tasks of the step have come to PMI-2's fence in time; "
                f"{missing}. Look for a task that has ended, or runs another program"
            ) from None

    def _missing_on_node(self, deadline: float) -> str:
        """Returns who of the node has not come: of others slurmstepd knows only after the fence."""
        missing = []
        for rank in self.task.node_ranks:
            what = f"key={self._arrival(rank)};wait=FALSE;"
            if self._ask("info-getnodeattr", what, deadline).get("found") != "TRUE":
                missing.append(rank)
        if not missing:
            return "those of this node have, and it does not tell who is missing on the others"
        shown = ", ".join(map(str, missing[:16])) + (", …" if len(missing) > 16 else "")
        total = len(self.task.node_ranks)
        return f"of this node, {len(missing)} of {total} are missing: rank {shown}"

    def _arrival(self, rank: int) -> str:
        return f"{_PREFIX}fence/{self._fences}/{rank}"

    def _get(self, key: str, deadline: float) -> str:
        parts: List[str] = []
        number = 1
        while len(parts) < number:
            what = f"jobid=0;srcid=-1;key={_PREFIX}{key}/{len(parts)};"
            answer = self._ask("kvs-get", what, deadline)
            if answer.get("found") != "TRUE":
                raise RendezvousError(
                    f"all {self.size} tasks of the step have come to PMI-2's fence, but none has "
                    f"given {key!r}: they do not run the same program. Start the same one in all."
                )
            part = answer.get("value", "")
            if not parts:
                count, _, part = part.partition(":")
                if not re.fullmatch("[1-9][0-9]{0,3}", count):
                    raise self._connection.fail(f"PMI-2 has {answer!r} for {key!r}")
                number = int(count)
            parts.append(part)
        return unquote("".join(parts))

    def _ask(self, command: str, rest: str, deadline: float) -> Dict[str, str]:
        try:
            return self._connection.ask(command, rest, deadline)
        except TimeoutError:
            problem = f"slurmstepd did not answer {command} in time"
            raise self._connection.fail(problem) from None


_lock = threading.Lock()
_store: Optional[Pmi2Store] = None
_problem: Optional[str] = None  # why this process has none, and never will


def open_store(task: Pmi2Task, timeout: float = _HERE_SECONDS) -> Optional[Pmi2Store]:
    """Returns the store of this process, always the same; None where there is none.

    Whoever calls it has made sure that this process stands for its task (`claim_task`), and that no
    program of the task uses MPI: that could not be started any more.

    Raises:
        RendezvousError: where slurmstepd does not answer as PMI-2 does, or not in `timeout`
            seconds.
    """
    global _store, _problem
    with _lock:
        if _store is None and _problem is None:
            _problem = find_problem(task.fd)
            if _problem is None:
                _problem = "it could not be started"  # unless it can
                store = Pmi2Store(task, timeout)
                _problem = store.problem
                if _problem is None:
                    _store = store
                    atexit.register(_finalize)
        return _store


def has_store() -> bool:
    """Returns whether this process has opened its store."""
    return _store is not None


def _finalize() -> None:
    # Not after a fence that has not ended: slurmstepd would answer it to a closed socket.
    if _store is not None and _store.problem is None:
        _store.finalize()


def _check_key(key: str) -> None:
    if not _KEY.fullmatch(key):
        expected = "1 to 32 letters, digits, or any of _ . / -"
        raise ValueError(f"{key!r} cannot be a key of PMI-2's store: expected {expected}")


def _cut(key: str, value: str) -> List[str]:
    """Returns the pieces of a value that the wire can carry, the first with their number."""
    _check_key(key)
    text = quote(value, safe="/:,=+*", errors="strict")
    pieces = [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)] or [""]
    if len(pieces) > _MAX_PIECES:
        raise ValueError(
            f"the value of {key!r} has {len(text):,} bytes; expected at most "
            f"{_PIECE * _MAX_PIECES:,}, which all tasks are to read"
        )
    pieces[0] = f"{len(pieces)}:{pieces[0]}"
    return pieces


def _leave_in_child() -> None:
    """A child by `fork` has the same socket: what it read would be missing in its parent."""
    global _lock, _store, _problem
    _lock = threading.Lock()  # another thread may have held it
    if _store is not None:
        _store.close()
        _store, _problem = None, "its parent uses it"


os.register_at_fork(after_in_child=_leave_in_child)
