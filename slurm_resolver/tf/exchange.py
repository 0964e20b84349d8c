"""Lets the workers of a strategy compare their next call, and learn that another one has failed."""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import tensorflow as tf

from slurm_resolver.cluster.roles import ranks_of
from slurm_resolver.coordination.client import Client, leave_all
from slurm_resolver.coordination.serving import TRAIN
from slurm_resolver.coordination.wire import Message
from slurm_resolver.errors import FitError, RendezvousError
from slurm_resolver.log import exit_at_once, warn
from slurm_resolver.tf.causes import OF_PEERS, cause_of, lost_task
from slurm_resolver.tf.keras import borrowed
from slurm_resolver.tf.progress import reporter
from slurm_resolver.wording import shorten

# Seconds that a failed worker waits for the others to fail as well, so that it need not tell them.
_SECONDS = 5.0
_LISTED = 4  # workers that an error names
_CALL = "this call of fit, evaluate or predict"  # what workers tell each other about
_STEP = "begins the next step"
_FAILED = "has failed"
_UNMADE = "cannot make a variable"
# TensorFlow's words if workers send or receive other shapes or types.
_MISMATCHES = "mismatch in the collective|expected type"
_IN_ALL = (
    "Make each call in all workers, as each of them computes its rows: leave out what lets one "
    "worker alone make it, such as `if task_id == 0:`."
)
_GONE_SECONDS = 4.0  # in which the service names the task that is gone
# In what another task says of its end: the task that has caused it.
_CAUSE = re.compile(r"\w+ \d+ \(rank \d+ on \S+\) is gone.*")
MARK = "slurm_resolver: "  # in the errors of collectives that this module ends


class Workers:
    """The workers of a strategy, as one of them sees them; all make it at the same point.

    If another worker is gone, TensorFlow's collectives fail here with an error that names it.
    TensorFlow itself notices only after its heartbeats have failed, and blames the worker that
    notices first.
    """

    call = ""  # the method in which they fail together, such as "fit"
    _calls: int = 0
    _failure = ""  # of another worker, in the current call
    _failed = False  # whether this worker alone has failed in its last call
    loss = ""  # which worker is gone or has ended
    _is_in_step = False
    _is_unmade = False  # whether another worker cannot make the current variable
    _is_exchanging = False  # the worker that has failed then answers
    _begins = _STEP  # what this worker has begun with the others, as messages say it
    # How many exchanges and steps this worker has begun, and those of one that waits for it.
    _exchanges = 0
    _steps: int = 0
    _awaited = (0, 0)

    def __init__(self, strategy: Any, client: Client | None) -> None:
        global _newest
        _newest = self
        resolver = strategy.cluster_resolver
        counts = resolver.cluster_spec().as_dict()
        # every worker's name, such as "worker 0"; none if the strategy trains alone
        self.names = [
            f"{job} {index}" for job in TRAIN for index in range(len(counts.get(job, ())))
        ]
        self._name = f"{resolver.task_type} {resolver.task_id}"
        self.index = self.names.index(self._name) if self.names else 0
        self._strategy = strategy
        self._client: Any = client  # None under TF_CONFIG
        self._lock = threading.Lock()
        self._gather_lines = tf.function(self._gather_line, autograph=False, reduce_retracing=True)
        if client is not None:
            cluster = resolver.cluster
            # their names, by rank, in the order of their indices
            self._ranks = dict(zip(ranks_of(cluster.roles, TRAIN), self.names))
            self._others = set(range(cluster.num_tasks)).difference(self._ranks)
            self._name_of = cluster.name_of
            client.listen("told", self._take_failure)
            client.listen("awaited", self._take_waiting)
            client.listen("gone", self._take_loss)
            client.listen("left", self._take_goodbyes)

    def exchange(self, call: str, value: Any) -> list[Any]:
        """Returns the values that all workers give, by index; they must fit into JSON.

        Args:
            call: what this worker does, such as "calls fit"; all workers have to do the same.
            value: what this worker gives.

        Raises:
            FitError: if another worker does something else, has ended, or is lost.
        """
        if len(self.names) < 2:
            return [value]
        self._exchanges += 1
        given = [call, value, self._steps, self.call]
        if self._client is None:  # under TF_CONFIG there is no service
            line = tf.constant(list(json.dumps(given).encode() + b"\n"), tf.int32)
            gathered = self._strategy.experimental_local_results(self._gather_lines(line))[0]
            lines = bytes(gathered.numpy().tolist()).splitlines()
            replicas = len(self._strategy.extended.worker_devices)
            told = [json.loads(line) for line in lines[::replicas]]
        else:
            self._is_exchanging = True
            try:
                by_rank = self._client.gather(_CALL, given, None, self._others)
            except RendezvousError as error:
                raise FitError(self._failure or f"this worker {call}: {error} {_IN_ALL}") from error
            finally:
                self._is_exchanging = False
            told = [by_rank[rank] for rank in self._ranks]
        calls, values, *_ = zip(*told)
        for name, other in zip(self.names, calls):
            if other != calls[0]:
                raise FitError(
                    self._failure or _describe_calls(self.names[0], calls[0], name, other)
                )
        return list(values)

    @contextlib.contextmanager
    def step(self, begins: str = _STEP) -> Iterator[None]:
        """Takes a step of all workers in the block, or does something else in which all take part.

        Args:
            begins: what this worker does, such as "makes the variable 'kernel'".

        Raises:
            FitError: if another worker waits in a call that this one has left out, or has ended.
        """
        self._steps += 1
        self._begins = begins
        if self._is_awaited(self._steps):
            self.exchange(begins, None)
        within = self._is_in_step  # a step may make variables
        self._is_in_step = True
        try:
            if self.loss:
                raise FitError(self._failure or self.loss)
            yield
        except (tf.errors.OutOfRangeError, StopIteration):  # there was no data for a step
            self._steps -= 1
            raise
        except tf.errors.OpError as error:
            reason = "" if self.call else self._reason_of(error)
            if reason:  # as in `train_on_batch`
                raise FitError(reason) from error
            raise
        finally:
            self._is_in_step = within

    def make(self, create: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Makes a variable, which takes the first worker's value in all of them.

        TensorFlow would wait without end if one worker alone made it.

        Args:
            create: makes it from the other arguments, which are those of `tf.Variable`.

        Raises:
            FitError: in every worker, if another one makes another variable, or none.
        """
        if not tf.distribute.in_cross_replica_context():
            return create(*args, **kwargs)  # in a step, which all workers take
        if not self._is_unmade:
            try:
                with self.step(f"makes the variable {kwargs.get('name')!r} in strategy.scope()"):
                    return create(*args, **kwargs)
            except (tf.errors.OpError, FitError) as error:
                differ = self._is_unmade or re.search(_MISMATCHES, str(error))
                # Another worker's failure has its own message.
                if self._client is None or self.loss or not differ:
                    raise
        value = kwargs["initial_value"]
        value = tf.convert_to_tensor(value() if callable(value) else value)
        own = f"{kwargs.get('name') or 'Variable'} ({value.dtype.name} {tuple(value.shape)})"
        told = self.exchange(_UNMADE, own)
        self._is_unmade = False
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
        purpose, exchanges = message["awaited"]
        if purpose != _CALL:
            return
        call, _, steps, within = json.loads(message["value"])
        self._awaited = (exchanges, steps)
        if call == _UNMADE and exchanges > self._exchanges:
            # This worker may wait in the same variable, or have made its own already.
            self._is_unmade = True
            if self._is_in_step:
                _abort_collectives(f"{self._name} makes another variable")
        elif self._failed and not self.call and within:
            self._answer_after_failure()
        elif self._is_awaited(self._steps):
            self._client.offer(_CALL, [self._begins, None, self._steps, self.call])
            other = self._ranks[message["rank"]]
            _abort_collectives(_describe_calls(other, call, self._name, self._begins))

    def _answer_after_failure(self) -> None:
        """Ends the exchange in which other workers wait for this one, which has failed."""
        if self._is_awaited(math.inf):
            self._client.offer(_CALL, [_FAILED, None, self._steps, self.call])

    def _is_awaited(self, before: float) -> bool:
        """Whether another worker waits in a call before the step with this number; True once."""
        with self._lock:
            exchanges, steps = self._awaited
            awaited = exchanges > self._exchanges and steps < before
            if awaited:
                self._exchanges = exchanges
            return awaited

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
        self._calls += 1
        self._failure = ""
        self._failed = False
        self.call = call
        try:
            yield
        except Exception as error:
            reason = self._reason_of(error)
            if reason and isinstance(error, tf.errors.OpError):
                raise FitError(self._failure or reason) from error
            # If workers have made different calls, or TensorFlow misses one, all raise that.
            in_all = str(error).endswith(_IN_ALL) or isinstance(error, OF_PEERS)
            if self._client is not None and not in_all:
                topic = f"failed {self._calls}"
                self._client.tell(topic, cause_of(error))
                if not self._client.all_tell(topic, self._ranks, _SECONDS):
                    self._client.tell(f"ends {self._calls}", "")
                    self._failed = True
                    self._answer_after_failure()
            raise
        finally:
            self.call = ""
            self._failure = ""

    def _reason_of(self, error: BaseException) -> str:
        """Returns why another worker has ended what failed with an error, or ''."""
        reason = str(error).partition(MARK)[2].partition("\n")[0].rstrip("]'")
        if not reason and isinstance(error, OF_PEERS):
            if self._client is not None:
                self._client.wait_for(lambda: self._failure or self.loss, _GONE_SECONDS)
            reason = self._failure or self.loss or self.lost_by(error)
        return reason

    def lost_by(self, error: BaseException) -> str:
        """Returns which worker is gone if an error of TensorFlow says so, or ''."""
        name = lost_task(error, self.names, self.index)
        if name and self._client is not None:
            name = self._name_of(self._ranks[self.names.index(name)])
        return name and _describe_loss(name, "it does not answer TensorFlow")

    def _take_failure(self, message: Message) -> None:
        """Notes that another worker has failed in the same call, and ends the call if asked to."""
        name = self._ranks[message["rank"]]
        told = message["told"]
        if not self.call or name == self._name:
            return
        if told == f"failed {self._calls}":
            self._failure = f"{name} has failed in {self.call}: {message['value']}"
        elif told == f"ends {self._calls}" and not self._is_exchanging:
            _abort_collectives(self._failure)

    def _take_loss(self, message: Message) -> None:
        if message["gone"] in self._ranks or "service" in message:
            cause = _CAUSE.search(message["why"])
            name = self._name_of(message["gone"])
            reason = cause[0] if cause else _describe_loss(name, message["why"])
            own = self._name_of(self._client.address.rank)
            if reason.startswith(own):
                reason = f"{own} was stopped or cut off, and the others have ended without it"
            if not (cause and self.loss):
                warn("%s", reason)
            self.loss = self.loss or reason
            _abort_collectives(reason)

    def _take_goodbyes(self, message: Message) -> None:
        # These workers may have ended without an error, as this one may soon. Only a step fails.
        left = [rank for rank in self._ranks if rank in message["left"]]
        if left:
            name = self._name_of(left[0])
            self.loss = self.loss or f"{name} has ended, and takes no part in a step. {_IN_ALL}"
            if self._is_in_step:
                _abort_collectives(self.loss)


def _describe_calls(name: str, call: str, other: str, others_call: str) -> str:
    return f"{name} {call}, and {other} {others_call}. {_IN_ALL}"


def _describe_loss(name: str, why: str) -> str:
    # All workers take each step together: it was lost in the step that this one is in.
    return f"{name} is gone {reporter.where()}".rstrip() + f": {why}"


def _abort_collectives(reason: str) -> None:
    """Ends this process's collectives, and all later ones, with an AbortedError that says why."""
    missing = [name for name in (borrowed.CONTEXT, borrowed.ABORT) if name.is_missing()]
    if missing:  # in a loop of one's own; `fit` has raised an error
        warn("%s This step may wait without end: %s", borrowed.error_of(*missing), reason)
        return
    # TensorFlow's strategies do the same when their own check finds a peer gone.
    borrowed.ABORT.of(borrowed.CONTEXT.get()())(tf.errors.ABORTED, MARK + reason)


def _leave() -> None:
    """Tells the others which error ends this process. If a worker is lost, it ends at once.

    TensorFlow would wait for the answer to a heartbeat, for up to a minute.
    """
    error = getattr(sys, "last_value", None)
    if error is None or _newest is None:
        return
    lost = _newest.lost_by(error)
    leave_all((lost or cause_of(error))[:500])
    if lost or _newest.loss:
        exit_at_once()


_newest: Workers | None = None  # the workers of the newest strategy
# After the functions that the program registers later.
atexit.register(_leave)
