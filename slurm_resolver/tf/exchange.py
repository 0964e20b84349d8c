"""Lets the workers of a strategy compare their next call, and fail together.

Workers that take a step together wait for each other in TensorFlow's collectives, without end if
one of them does something else. So they tell each other what they do:

- In an *exchange*, such as before `fit`, each worker gives a value and gets those of all others.
  All must do the same, or each of them raises the same FitError.
- A *step* costs no message. If another worker waits in an exchange, the coordination service tells
  this one, which ends its step with the same FitError.
- A call such as `fit` *fails together*: if it fails in one worker, it ends in all, with that
  worker's error.

What a worker does is the state of its `Call`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple

import tensorflow as tf

from slurm_resolver.coordination.progress import DATA, MEETING
from slurm_resolver.coordination.training_group import Group
from slurm_resolver.coordination.wire import Message
from slurm_resolver.errors import FitError, RendezvousError
from slurm_resolver.tf.call import IN_ALL, MARK, Call, State, abort_collectives
from slurm_resolver.tf.causes import cause_of
from slurm_resolver.tf.reporter import reporter
from slurm_resolver.wording import shorten

# Seconds that a failed worker waits for the others to fail as well, so that it need not tell them.
_SECONDS = 5.0
_LISTED = 4  # workers that an error names
_PURPOSE = "this call of fit, evaluate or predict"  # what workers tell each other about
STEP = "begins the next step"
STEP_OF_CALLBACK = "begins a step in a callback"
# What to do if a worker ends an epoch while another one begins the next step of it.
STOPPED = (
    "stop_training was set within the epoch in the worker that ends it: set it at the end of an "
    "epoch, or in every worker at the same step."
)
ENDED = (
    "The data has fewer batches in the worker that ends the epoch: check whether its files are "
    "complete. Data that differs between workers needs AutoShardPolicy.OFF, and steps_per_epoch if "
    "its length differs."
)
# TensorFlow's words if workers send or receive other shapes or types.
_MISMATCH = "Shape mismatch in the collective|Collective instance .* expected type"


class _Offer(NamedTuple):
    """What a worker gives in an exchange."""

    worker: str  # its name
    does: str
    steps: int  # how many it has begun
    within: int | None  # the number of the call in which it fails together with the others
    value: Any = None  # that fits into JSON
    remedy: str = IN_ALL  # if another worker begins the next step instead


class Workers(Call):
    """The workers of a strategy, which compare what they do; all make it at the same point."""

    _steps: int = 0  # how many steps this worker has begun
    _begins = STEP  # what it has begun with the others, as messages say it

    def __init__(self, strategy: tf.distribute.Strategy, group: Group | None) -> None:
        super().__init__(strategy.cluster_resolver, group)
        self._strategy = strategy
        if self.client:
            self.client.listen("awaited", self._take_waiting)

    def exchange(self, does: str, value: object, remedy: str = IN_ALL) -> list[Any]:
        """Returns the values that all workers give, by index; they must fit into JSON.

        Args:
            does: what this worker does, such as "calls fit"; all workers have to do the same.
            value: what this worker gives.
            remedy: what to do if another worker begins the next step instead.

        Raises:
            FitError: if another worker does something else, has ended, or is lost.
        """
        if len(self.names) < 2:
            return [value]
        offer = self._give(does)._replace(value=value, remedy=remedy)
        offers = self._gather(offer) if self.client else self._gather_by_tensorflow(offer)
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
            reason = f"this worker {offer.does}: {error} {IN_ALL}"
            raise self.passing_on(self.failure or self.loss or reason) from None
        return [_Offer(*offer) for offer in by_rank.values()]

    def _gather_by_tensorflow(self, offer: _Offer) -> list[_Offer]:
        """Returns what all workers give, under TF_CONFIG, where there is no service."""
        strategy = self._strategy
        line = tf.constant(list(json.dumps(offer).encode() + b"\n"), tf.int32)
        per_replica = strategy.experimental_distribute_values_from_function(lambda context: line)
        lines = bytes(strategy.gather(per_replica, axis=0).numpy().tolist()).splitlines()
        replicas = len(strategy.extended.worker_devices)
        return [_Offer(*json.loads(line)) for line in lines[::replicas]]

    @contextlib.contextmanager
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
            if MARK not in text and re.search(_MISMATCH, text):
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
        texts = []
        for value in dict.fromkeys(values):
            held = [name for name, held_value in zip(self.names, values) if held_value == value]
            texts.append(f"{value} in {shorten(held, _LISTED)}")
        return ", ".join(texts)

    @contextlib.contextmanager
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
            reason = self.reason_of(error) if isinstance(error, tf.errors.OpError) else ""
            # After a loss, errors of Keras follow from it as well.
            if (reason or self.loss) and not isinstance(error, FitError):
                raise self.passing_on(self.failure or self.loss or reason) from error
            if self.client and not self.failure and not self.absence:
                self._fail(f"{self.name} has failed in {call}: {cause_of(error)}")
            raise
        finally:
            self.enter(State.ENDED)

    def _fail(self, reason: str) -> None:
        """Waits for the others to fail in this call as well, or tells them why this one has."""
        self.enter(State.FAILED)
        try:
            self.client.gather(
                f"the end of call {self.calls}",
                None,
                _SECONDS,
                self.ranks,
            )
        except RendezvousError:
            self.client.tell(f"failed {self.calls}", reason)

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
            waiting = _Offer(*json.loads(message["value"]))
            if waiting.within == self.calls and not self.call:
                self.client.offer(_PURPOSE, self._give("has ended that call"))
            elif waiting.steps < self._steps and reporter.phase != DATA:  # there may be no data
                answer = self._give(self._begins)
                self.client.offer(_PURPOSE, answer)
                abort_collectives(_describe(waiting, answer))


def _describe(offer: _Offer, other: _Offer) -> str:
    """Returns what two workers do, and what to do about it."""
    remedy = IN_ALL
    if other.does == STEP:
        remedy = offer.remedy
    elif offer.does == STEP:
        remedy = other.remedy
    return f"{offer.worker} {offer.does}, and {other.worker} {other.does}. {remedy}"
