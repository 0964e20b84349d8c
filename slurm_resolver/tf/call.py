"""What this worker does with the others of its strategy, and what ends that.

Two threads share a `Call`: the program's moves it from state to state, and the one that holds the
connection to the coordination service notes what happens to other workers. Both take its lock.

    ENDED      outside of `fit`, `evaluate` and `predict`
    BEGUN      in one of these calls, in Python
    STEP       in a step of all workers, or where they make a variable together
    EXCHANGE   in an exchange, which ends when all have come, or one of them is missing
    FAILED     has failed in a call, and waits for the others to fail as well

This ends the collectives of this worker with an error that says why, if another worker

- fails in the same call: in BEGUN and STEP. In EXCHANGE, the failed worker answers.
- ends without an error: in STEP, as this worker may be about to end as well.
- is lost: in every state. TensorFlow itself notices only after its heartbeats have failed, and
  blames the worker that notices first.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import tensorflow as tf

from slurm_resolver.coordination import TRAIN
from slurm_resolver.coordination.client import leave_all
from slurm_resolver.coordination.training_group import Group
from slurm_resolver.coordination.wire import Message
from slurm_resolver.errors import FitError, KerasError
from slurm_resolver.log import debug, exit_at_once, warn
from slurm_resolver.tf import private_names
from slurm_resolver.tf.causes import OF_PEERS, cause_of, lost_task
from slurm_resolver.tf.reporter import reporter

_GONE_SECONDS = 4.0  # in which the service names the task that is gone
# In what another task says of its end: the task that has caused it.
_CAUSE = re.compile(r"\w+ \d+ \(rank \d+ on \S+\) is gone.*")
MARK = "slurm_resolver: "  # in the errors of collectives that this package ends
IN_ALL = (
    "Make each call in all workers, as each of them computes its rows: leave out what lets one "
    "worker alone make it, such as `if task_id == 0:`."
)


State = enum.Enum("State", "ENDED BEGUN STEP EXCHANGE FAILED")


class Call:
    """What this worker does with the others.

    Attributes:
        names: every worker's name, such as "worker 0"; none if the strategy trains alone.
        full_names: the same with rank and node, such as "worker 0 (rank 0 on n1)", if these are
            known.
        name: of this worker.
        index: of this worker.
        client: the connection to the coordination service; None under TF_CONFIG.
        ranks: of the workers, in the order of their names.
        state: what this worker does.
        call: the method in which the workers fail together, such as "fit"; '' outside of these.
        calls: how many of these this worker has begun.
        failure: of another worker, in the current call.
        loss: which worker is lost.
        absence: which worker cannot take part in a step: it is lost, or has ended.
    """

    state = State.ENDED
    call = ""
    calls = 0
    failure = ""
    loss = ""
    absence = ""

    def __init__(
        self,
        resolver: tf.distribute.cluster_resolver.ClusterResolver,
        group: Group | None,
    ) -> None:
        global _newest
        _newest = self
        self.lock = threading.Lock()
        counts = resolver.cluster_spec().as_dict()
        self.names = [
            f"{job} {index}" for job in TRAIN for index in range(len(counts.get(job, ())))
        ]
        self.name = f"{resolver.task_type} {resolver.task_id}"
        self.index = self.names.index(self.name) if self.names else 0
        self.full_names = self.names
        self.client: Any = None
        if group:
            self.client = group.client
            self.ranks = group.ranks
            self.full_names = group.names
            self.client.listen("told", self._take_failure)
            self.client.listen("gone", self._take_loss)
            self.client.listen("left", self._take_goodbyes)

    def enter(self, state: State, call: str = "") -> None:
        """Enters BEGUN, at the beginning of a call, FAILED or ENDED."""
        with self.lock:
            self.state = state
            self.call = call
            self.failure = ""
            if call:
                self.calls += 1

    @contextlib.contextmanager
    def doing(self, state: State) -> Iterator[None]:
        """Is in STEP or EXCHANGE in the block.

        Raises:
            FitError: if another worker has failed, or is gone and this one would wait for it.
        """
        with self.lock:
            self.refuse_loss(state)
            before = self.state
            self.state = state
        try:
            yield
        finally:
            with self.lock:
                self.state = before
        if self.failure:  # a loss ends what waits next: these values may say why it came to that
            raise self.passing_on(self.failure)

    def refuse_loss(self, state: State = State.EXCHANGE) -> None:
        """Raises FitError if another worker, for which this one would wait, has failed or is gone.

        One that has ended without an error is missing only in STEP.
        """
        reason = self.failure or (self.absence if state is State.STEP else self.loss)
        if reason:
            raise self.passing_on(reason)

    def passing_on(self, reason: str) -> FitError:
        """Returns the error that says why another worker has ended what this one does."""
        return FitError(reason, is_passed_on=reason in (self.failure, self.loss))

    def reason_of(self, error: BaseException) -> str:
        """Returns why another worker ended the operation that has failed with an error, or ''."""
        reason = str(error).partition(MARK)[2].partition("\n")[0].rstrip("]'")
        if not reason and isinstance(error, OF_PEERS):
            reason = self.await_reason() or self.lost_by(error)
        return reason

    def await_reason(self) -> str:
        """Returns which worker has failed or is gone, once the service says so, or ''."""
        if self.client:
            self.client.wait_for(lambda: self.failure or self.absence, _GONE_SECONDS)
        return self.failure or self.absence

    def lost_by(self, error: BaseException) -> str:
        """Returns which worker is gone if an error of TensorFlow says so, or ''."""
        name = lost_task(error, self.names, self.name)
        return name and _describe_loss(
            self.full_names[self.names.index(name)],
            "it does not answer TensorFlow",
        )

    def _take_failure(self, message: Message) -> None:
        """Ends the call, as another worker has failed in it."""
        with self.lock:
            if self.call and message["told"] == f"failed {self.calls}":
                self.failure = message["value"]
                if self.state is not State.EXCHANGE:
                    abort_collectives(self.failure)

    def _take_loss(self, message: Message) -> None:
        if message["gone"] in self.ranks or "service" in message:
            cause = _CAUSE.search(message["why"])
            name = self.client.name_of(message["gone"])
            reason = cause[0] if cause else _describe_loss(name, message["why"])
            this = self.full_names[self.index]
            if reason.startswith(this):
                reason = f"{this} was stopped or cut off, and the others have ended without it"
            with self.lock:
                if not self.loss:  # else it follows from that
                    warn("%s", reason)
                    self.loss = reason
                    self.absence = reason
                abort_collectives(reason)

    def _take_goodbyes(self, message: Message) -> None:
        left = [rank for rank in self.ranks if rank in message["left"]]
        if left:
            name = self.client.name_of(left[0])
            with self.lock:
                self.absence = (
                    self.absence or f"{name} has ended, and cannot take part in a step. {IN_ALL}"
                )
                if self.state is State.STEP:
                    abort_collectives(self.absence)


def _describe_loss(name: str, why: str) -> str:
    # All workers take each step together: it was lost in the step that this one is in.
    return f"{name} is gone {reporter.where()}".rstrip() + f": {why}"


def abort_collectives(reason: str) -> None:
    """Ends this process's collectives, and all later ones, with an AbortedError that says why."""
    try:
        abort = private_names.ABORT.of(private_names.CONTEXT.get()())
    except KerasError as error:  # in a loop of one's own; `fit` has raised it
        warn("%s This step may wait without end: %s", error, reason)
        return
    # TensorFlow's strategies do the same when their own check finds a peer gone.
    abort(tf.errors.ABORTED, MARK + reason)


def _print_short(
    kind: type[BaseException],
    error: BaseException,
    where: TracebackType | None,
) -> None:
    """Prints an error as before, but the failure of another worker in one line.

    The traceback in this worker says only where it waited; it is logged at the level DEBUG.
    """
    if isinstance(error, FitError) and error.is_passed_on:
        debug("another worker has failed", error)
        sys.stderr.write("".join(traceback.format_exception_only(kind, error)))
    else:
        _print_error(kind, error, where)


def _leave() -> None:
    """Tells the others which error ends this process. If a worker is lost, it ends at once.

    TensorFlow would wait for the answer to a heartbeat, for up to a minute.
    """
    error = getattr(sys, "last_value", None)
    if error is None or not _newest:
        return
    lost = _newest.lost_by(error)
    leave_all((lost or cause_of(error))[:500])
    if lost or _newest.absence:
        exit_at_once()


_newest: Call | None = None  # of the newest strategy
_print_error = sys.excepthook  # what the program or Python has set
sys.excepthook = _print_short
# After the functions that the program registers later.
atexit.register(_leave)
