"""Lets the workers of a strategy compare their next call, and fail together.

Workers that take a step together wait for each other in TensorFlow's collectives, without end if
one of them does something else. So they tell each other what they do:

- In an *exchange*, such as before `fit`, each worker gives a value and gets those of all others.
  All must do the same, or each of them raises the same FitError.
- A *step* costs no message. If another worker waits in an exchange, the coordination service tells
  this one, which ends its step with the same FitError.
- A call such as `fit` *fails together*: if it fails in one worker, it ends in all, with that
  worker's error.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from slurm_resolver.coordination.client import Client
from slurm_resolver.coordination.progress import DATA, MEETING
from slurm_resolver.coordination.wire import Message
from slurm_resolver.errors import FitError, RendezvousError
from slurm_resolver.tf.causes import OF_PEERS, cause_of
from slurm_resolver.tf.peers import IN_ALL, Peers, abort_collectives
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.progress import reporter
from slurm_resolver.wording import shorten

# Seconds that a failed worker waits for the others to fail as well, so that it need not tell them.
_SECONDS = 5.0
_LISTED = 4  # workers that an error names
_CALL = "this call of fit, evaluate or predict"  # what workers tell each other about
STEP = "begins the next step"
STEP_OF_CALLBACK = "begins a step in a callback"
_FAILED = "has failed"
_UNMADE = "cannot make a variable"
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
_REMEDIES = (IN_ALL, STOPPED, ENDED)
_GONE_SECONDS = 2.0  # in which the service says why a worker is missing
# TensorFlow's words if workers send or receive other shapes or types.
_MISMATCHES = "mismatch in the collective|expected type"


class _Given(NamedTuple):
    """What a worker gives in an exchange."""

    worker: str  # its name
    call: str  # what it does
    value: Any
    steps: int  # how many it has begun
    within: str  # the method in which it fails together with the others
    remedy: str = IN_ALL  # if another worker begins the next step instead


class Workers(Peers):
    """The workers of a strategy, which compare what they do; all make it at the same point."""

    _failed = False  # whether this worker alone has failed in its last call
    _begins = STEP  # what this worker has begun with the others, as messages say it
    _steps: int = 0  # how many steps this worker has begun
    # The last exchange in which others have waited for this worker: its number, and one of them.
    _awaited: tuple[int, _Given] | None = None

    def __init__(self, strategy: Any, client: Client | None) -> None:
        super().__init__(strategy.cluster_resolver, client)
        self._strategy = strategy
        self._lock = threading.Lock()
        self._gather_lines = tf.function(self._gather_line, autograph=False, reduce_retracing=True)
        if client:
            client.listen("awaited", self._take_waiting)

    def exchange(self, call: str, value: Any, remedy: str = IN_ALL) -> list[Any]:
        """Returns the values that all workers give, by index; they must fit into JSON.

        Args:
            call: what this worker does, such as "calls fit"; all workers have to do the same.
            value: what this worker gives.
            remedy: what to do if another worker begins the next step instead.

        Raises:
            FitError: if another worker does something else, has ended, or is lost.
        """
        if len(self.names) < 2:
            return [value]
        given = self._give(call, value)._replace(remedy=remedy)
        if not self.client:  # under TF_CONFIG there is no service
            line = tf.constant(list(json.dumps(given).encode() + b"\n"), tf.int32)
            gathered = self._strategy.experimental_local_results(self._gather_lines(line))[0]
            lines = bytes(gathered.numpy().tolist()).splitlines()
            replicas = len(self._strategy.extended.worker_devices)
            told = [_Given(*json.loads(line)) for line in lines[::replicas]]
        else:
            self.is_exchanging = True
            try:
                with reporter.doing(MEETING):
                    by_rank = self.client.gather(_CALL, given, None, self.others)
            except RendezvousError as error:
                # One that is lost says why; one that has left may have left out the call.
                self.client.wait_for(lambda: self.failure or self.absence, _GONE_SECONDS)
                own = f"this worker {call}: {error} {IN_ALL}"
                raise FitError(self.failure or self.loss or own) from None
            finally:
                self.is_exchanging = False
            told = [_Given(*by_rank[rank]) for rank in self.ranks]
        for other in told:
            if other.call != told[0].call:
                raise FitError(self.failure or _describe_calls(told[0], other))
        return [one.value for one in told]

    def _give(self, call: str, value: Any = None) -> _Given:
        return _Given(self.name, call, value, steps=self._steps, within=self.call)

    @contextlib.contextmanager
    def step(self, begins: str = STEP) -> Iterator[None]:
        """Takes a step of all workers in the block, or does something else in which all take part.

        Args:
            begins: what this worker does, such as "makes the variable 'kernel'".

        Raises:
            FitError: if another worker waits in a call that this one has left out, or has ended.
        """
        self._steps += 1
        self._begins = begins
        within = self.is_in_step  # a step may make variables
        self.is_in_step = True
        try:
            if self.absence:
                raise FitError(self.failure or self.absence)
            yield
        except (tf.errors.OutOfRangeError, StopIteration):  # there was no data for a step
            self._steps -= 1
            raise
        except tf.errors.OpError as error:
            reason = "" if self.call else self.reason_of(error)
            if reason:  # as in `train_on_batch`
                raise FitError(reason) from error
            raise
        finally:
            self.is_in_step = within

    def make(self, create: Method, *args: Any, **kwargs: Any) -> Any:
        """Makes a variable, which takes the first worker's value in all of them.

        TensorFlow would wait without end if one worker alone made it.

        Args:
            create: makes it from the other arguments, which are those of `tf.Variable`.

        Raises:
            FitError: in every worker, if another one makes another variable, or none.
        """
        if not tf.distribute.in_cross_replica_context():
            return create(*args, **kwargs)  # in a step, which all workers take
        if not self._is_unmade():
            try:
                begins = f"makes the variable {kwargs.get('name')!r} in strategy.scope()"
                with reporter.doing(MEETING), self.step(begins):
                    return create(*args, **kwargs)
            except (tf.errors.OpError, FitError) as error:
                differ = self._is_unmade() or re.search(_MISMATCHES, str(error))
                # Another worker's failure has its own message.
                if not self.client or self.absence or not differ:
                    raise
        value = kwargs["initial_value"]
        value = tf.convert_to_tensor(value() if callable(value) else value)
        own = f"{kwargs.get('name') or 'Variable'} ({value.dtype.name} {tuple(value.shape)})"
        told = self.exchange(_UNMADE, own)
        raise FitError(
            f"the workers make different variables: {self.holders(told)}. Build and compile the "
            "same model in every worker"
        )

    def holders(self, values: Sequence[str]) -> str:
        """Returns which worker has which value: "0.1 in worker 0, 0.2 in worker 1, worker 2"."""
        texts = []
        for value in dict.fromkeys(values):
            held = [name for name, own in zip(self.names, values) if own == value]
            texts.append(f"{value} in {shorten(held, _LISTED)}")
        return ", ".join(texts)

    def _take_waiting(self, message: Message) -> None:
        """Ends this worker's step, because another worker waits for it in a call."""
        purpose, number = message["awaited"]
        if purpose != _CALL:
            return
        self._awaited = (number, _Given(*json.loads(message["value"])))
        if self._is_unmade():  # this worker may wait in the same variable, or have made its own
            if self.is_in_step:
                abort_collectives(f"{self.name} makes another variable")
            return
        if reporter.report().phase == DATA:  # there may be none: then it takes no step
            return  # the service asks again
        differ = self._answer()
        if differ and not self._failed:
            abort_collectives(differ)

    def _who_waits(self) -> _Given | None:
        """Returns what a worker gives that waits in an exchange that this one has not begun."""
        if self._awaited:
            number, given = self._awaited
            if number > self.client.begun[_CALL]:
                return given
        return None

    def _is_unmade(self) -> bool:
        """Whether another worker waits, as it cannot make the current variable."""
        given = self._who_waits()
        return given is not None and given.call == _UNMADE

    def _answer(self) -> str:
        """Answers a worker that waits, if this one has begun another step, or has failed.

        Returns what both do; '' if none waits for an answer.
        """
        with self._lock:
            given = self._who_waits()
            if given is None:
                return ""
            if self._failed and not self.call and given.within:
                own = self._give(_FAILED)
            elif given.steps < self._steps:
                own = self._give(self._begins)
            else:
                return ""
            self.client.offer(_CALL, own)
        return _describe_calls(given, own)

    def _gather_line(self, line: tf.Tensor) -> Any:
        """Returns the lines of all replicas, by TensorFlow."""
        return self._strategy.run(
            lambda: tf.distribute.get_replica_context().all_gather(tf.identity(line), axis=0)
        )

    @contextlib.contextmanager
    def failing_together(self, call: str) -> Iterator[None]:
        """Ends the call in all workers when it fails in one of them, with that worker's error.

        If it fails in all of them, each raises its own error, and all may continue.

        Raises:
            FitError: when another worker has failed or is lost.
        """
        self.calls += 1
        self.failure = ""
        self._failed = False
        self.call = call
        try:
            yield
        except Exception as error:
            reason = self.reason_of(error)
            # After a loss, errors of Keras follow from it as well.
            follows = self.loss and not isinstance(error, FitError)
            if follows or (reason and isinstance(error, tf.errors.OpError)):
                raise FitError(self.failure or self.loss or reason) from error
            # If workers have made different calls, or one is missing, all raise that.
            is_missed = self.loss or isinstance(error, OF_PEERS)
            in_all = is_missed or str(error).endswith(_REMEDIES)
            if self.client and not in_all:
                try:
                    purpose = f"the end of call {self.calls}"
                    self.client.gather(purpose, None, _SECONDS, self.others)
                except RendezvousError:
                    self.client.tell(f"failed {self.calls}", cause_of(error))
                    self.call = ""
                    self._failed = True
                    self._answer()
            raise
        finally:
            self.call = ""
            self.failure = ""


def _describe_calls(given: _Given, other: _Given) -> str:
    remedy = IN_ALL
    if other.call == STEP:
        remedy = given.remedy
    elif given.call == STEP:
        remedy = other.remedy
    return f"{given.worker} {given.call}, and {other.worker} {other.call}. {remedy}"
