"""What the workers of a strategy do together: they compare their next call, and fail together.

Workers that take a step together wait for each other in TensorFlow's collectives, without end if
one of them does something else. So they tell each other what they do:

- In an *exchange*, such as before `fit`, each worker gives a value and gets those of all others.
  All must do the same, or each of them raises the same FitError.
- A *step* costs no message. If another worker waits in an exchange, the coordination service tells
  this one, which ends its step with the same FitError.
- A call such as `fit` *fails together*: if it fails in one worker, it ends in all, with that
  worker's error.

Two threads share a `Workers`: the program's moves it from state to state, and the one that holds
the connection to the coordination service notes what happens to other workers. Both take its lock.

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
import re
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from json import dumps, loads
from threading import Lock
from types import TracebackType
from typing import Any, Callable, NamedTuple

import tensorflow as tf

from slurm_resolver.coordination import TRAIN
from slurm_resolver.coordination.client import leave_all
from slurm_resolver.coordination.progress import DATA, MEETING
from slurm_resolver.coordination.training_group import Group
from slurm_resolver.coordination.wire import Message
from slurm_resolver.errors import FitError, KerasError, RendezvousError
from slurm_resolver.log import debug, exit_at_once, warn
from slurm_resolver.tf import private_names
from slurm_resolver.tf.causes import OF_PEERS, cause_of
from slurm_resolver.tf.reporter import reporter
from slurm_resolver.wording import shorten

MARK = "slurm_resolver: "  # in the errors of collectives that this package ends
IN_ALL = (
    "Make each call in all workers, as each of them computes its rows: leave out what lets one "
    "worker alone make it, such as `if task_id == 0:`; set stop_training at the end of an epoch, "
    "or in every worker at the same step; and check whether each worker's data is complete. Data "
    "that differs between workers needs AutoShardPolicy.OFF, and steps_per_epoch if its length "
    "differs."
)

_PURPOSE = "this call of fit, evaluate or predict"  # what workers tell each other about
STEP = "begins the next step"
STEP_OF_CALLBACK = "begins a step in a callback"

State = Enum("State", "ENDED BEGUN STEP EXCHANGE FAILED")


class _Offer(NamedTuple):
    """What a worker gives in an exchange."""

    worker: str  # its name
    does: str
    steps: int  # how many it has begun
    within: int | None  # the number of the call in which it fails together with the others
    value: Any = None  # that fits into JSON


class Workers:
    """The workers of a strategy, which compare what they do; all make it at the same point.

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
    client: Any = None
    _steps: int = 0  # how many steps this worker has begun
    _begins = STEP  # what it has begun with the others, as messages say it

    def __init__(self, strategy: tf.distribute.Strategy, group: Group | None) -> None:
        global _newest
        _newest = self
        self.lock = Lock()
        self._strategy = strategy
        resolver = strategy.cluster_resolver
        counts = resolver.cluster_spec().as_dict()
        self.names = [
            f"{job} {index}" for job in TRAIN for index in range(len(counts.get(job, ())))
        ]
        self.name = f"{resolver.task_type} {resolver.task_id}"
        self.index = self.names.index(self.name) if self.names else 0
        self.full_names = self.names
        if group:
            self.client = group.client
            self.ranks = group.ranks
            self.full_names = group.names
            self.client.listen("told", self._take_failure)
            self.client.listen("gone", self._take_loss)
            self.client.listen("left", self._take_goodbyes)
            self.client.listen("awaited", self._take_waiting)

    def exchange(self, does: str, value: object) -> list[Any]:
        """Returns the values that all workers give, by index; they must fit into JSON.

        Args:
            does: what this worker does, such as "calls fit"; all workers have to do the same.
            value: what this worker gives.

        Raises:
            FitError: if another worker does something else, has ended, or is lost.
        """
        if len(self.names) < 2:
            return [value]
        offers = self._gather(self._give(does)._replace(value=value))
        for other in offers:
            if other.does != offers[0].does:
                reason = self.failure or _describe(offers[0], other)
                with self.lock:  # all workers raise it
                    self.failure = reason if self.call else ""
                raise FitError(reason)
        return [other.value for other in offers]

    def _give(self, does: str) -> _Offer:
        return _Offer(
            self.name,
            does,
            self._steps,
            within=self.calls if self.call else None,
        )

    def _gather(self, offer: _Offer) -> list[_Offer]:
        """Returns what all workers give."""
        if not self.client:  # under TF_CONFIG
            strategy = self._strategy
            line = tf.constant(list(dumps(offer).encode() + b"\n"), tf.int32)
            values = strategy.experimental_distribute_values_from_function(lambda context: line)
            lines = bytes(strategy.gather(values, axis=0).numpy().tolist()).splitlines()
            replicas = len(strategy.extended.worker_devices)
            return [_Offer(*loads(line)) for line in lines[::replicas]]
        try:
            with self.doing(State.EXCHANGE), reporter.doing(MEETING):
                by_rank = self.client.gather(
                    _PURPOSE,
                    offer,
                    None,
                    self.ranks,
                )
        except RendezvousError as error:
            # One that is lost says why; one that has left may have left out the call.
            self.await_reason()
            raise self.passing_on(
                self.failure or self.loss or f"this worker {offer.does}: {error} {IN_ALL}"
            ) from None
        return [_Offer(*offer) for offer in by_rank.values()]

    @contextmanager
    def step(self, begins: str = STEP) -> Iterator[None]:
        """Takes a step of all workers in the block, or does something else in which all take part.

        Args:
            begins: what this worker does, such as "makes the variable 'kernel'".

        Raises:
            FitError: if another worker waits in a call that this one has left out, has ended, or
                sends other shapes or types.
        """
        self._steps += 1
        self._begins = begins
        try:
            with self.doing(State.STEP):
                yield
        except (tf.errors.OutOfRangeError, StopIteration):  # there was no data for a step
            self._steps -= 1
            raise
        except tf.errors.OpError as error:
            text = str(error)
            differ = "Shape mismatch in the collective|Collective instance .* expected type"
            if MARK not in text and re.search(differ, text):
                raise FitError(
                    f"this worker {begins}, and another one does something different "
                    f"({cause_of(error)}). Build and compile the same model in every worker, and "
                    "do the same with it"
                ) from error
            reason = "" if self.call else self.reason_of(error)
            if reason:  # as in `train_on_batch`
                raise self.passing_on(reason) from error
            raise

    def make(
        self,
        create: Callable[..., tf.Variable],
        *args: object,
        **kwargs: object,
    ) -> tf.Variable:
        """Makes a variable, which takes the first worker's value in all of them.

        TensorFlow would wait without end if one worker alone made it.

        Args:
            create: makes it from the other arguments, which are those of `tf.Variable`.

        Raises:
            FitError: if another worker makes another variable, or none.
        """
        if not tf.distribute.in_cross_replica_context():
            return create(*args, **kwargs)  # in a step, which all workers take
        begins = f"makes the variable {kwargs.get('name')!r} in strategy.scope()"
        with reporter.doing(MEETING), self.step(begins):
            return create(*args, **kwargs)

    def holders(self, values: Sequence[str]) -> str:
        """Returns which worker has which value: "0.1 in worker 0, 0.2 in worker 1, worker 2"."""
        held = defaultdict(list)
        for name, value in zip(self.names, values):
            held[value].append(name)
        return ", ".join(f"{value} in {shorten(names, 4)}" for value, names in held.items())

    @contextmanager
    def failing_together(self, call: str) -> Iterator[None]:
        """Ends the call in all workers when it fails in one of them, with that worker's error.

        If it fails in all of them, each raises its own error, and all may continue.

        Raises:
            FitError: when another worker has failed or is lost.
        """
        self.enter(State.BEGUN, call)
        try:
            yield
        except Exception as error:
            reason = self.reason_of(error)
            # After a loss, errors of Keras follow from it as well.
            if (reason or self.loss) and not isinstance(error, FitError):
                raise self.passing_on(self.failure or self.loss or reason) from error
            if self.client and not self.failure and not self.absence:
                self.enter(State.FAILED)
                try:  # if they fail as well, it need not tell them
                    self.client.gather(
                        f"the end of call {self.calls}",
                        None,
                        5.0,
                        self.ranks,
                    )
                except RendezvousError:
                    self.client.tell(
                        f"failed {self.calls}",
                        f"{self.name} has failed in {call}: {cause_of(error)}",
                    )
            raise
        finally:
            self.enter(State.ENDED)

    def _take_waiting(self, message: Message) -> None:
        """Answers a worker that waits, if this one has begun another step, or has ended its call.

        Otherwise this one may still come; the service asks again.
        """
        purpose, number = message["awaited"]
        with self.lock:
            if (
                purpose != _PURPOSE
                or self.state in (State.EXCHANGE, State.FAILED)
                or self.client.begun[_PURPOSE] >= number  # it comes
            ):
                return
            waiting = _Offer(*loads(message["value"]))
            if waiting.within == self.calls and not self.call:
                self.client.offer(_PURPOSE, self._give("has ended that call"))
            elif waiting.steps < self._steps and reporter.phase != DATA:  # there may be no data
                answer = self._give(self._begins)
                self.client.offer(_PURPOSE, answer)
                abort_collectives(_describe(waiting, answer))

    def enter(self, state: State, call: str = "") -> None:
        """Enters BEGUN, at the beginning of a call, FAILED or ENDED."""
        with self.lock:
            self.state = state
            self.call = call
            self.failure = ""
            if call:
                self.calls += 1

    @contextmanager
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
            self.client.wait_for(lambda: self.failure or self.absence, 4.0)
        return self.failure or self.absence

    def lost_by(self, error: BaseException) -> str:
        """Returns which worker is gone if an error of TensorFlow says so, or ''."""
        text = str(error) if isinstance(error, OF_PEERS) else ""
        # without the devices of tasks
        lost = [
            f"{job} {index}"
            for job, index in re.findall(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)(?![\d/])", text)
        ]
        # The first task runs TensorFlow's coordination service: errors of calls do not name it.
        if "/tensorflow.CoordinationService/" in text:
            lost += self.names[:1]
        for name in lost:
            if name in self.names and name != self.name:
                return _describe_loss(
                    self.full_names[self.names.index(name)],
                    "it does not answer TensorFlow",
                )
        return ""

    def _take_failure(self, message: Message) -> None:
        """Ends the call, as another worker has failed in it."""
        with self.lock:
            if self.call and message["told"] == f"failed {self.calls}":
                self.failure = message["value"]
                if self.state is not State.EXCHANGE:
                    abort_collectives(self.failure)

    def _take_loss(self, message: Message) -> None:
        if message["gone"] in self.ranks or "service" in message:
            # Another task says which one has caused its end.
            cause = re.search(r"\w+ \d+ \(rank \d+ on \S+\) is gone.*", message["why"])
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
        for rank in {*self.ranks} & {*message["left"]}:
            name = self.client.name_of(rank)
            with self.lock:
                self.absence = (
                    self.absence or f"{name} has ended, and cannot take part in a step. {IN_ALL}"
                )
                if self.state is State.STEP:
                    abort_collectives(self.absence)


def _describe(offer: _Offer, other: _Offer) -> str:
    """Returns what two workers do, and what to do about it."""
    return f"{offer.worker} {offer.does}, and {other.worker} {other.does}. {IN_ALL}"


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
        traceback.print_exception(kind, error, None, chain=False)
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


_newest: Workers | None = None  # of the newest strategy
_print_error = sys.excepthook  # what the program or Python has set
sys.excepthook = _print_short
# After the functions that the program registers later.
atexit.register(_leave)
