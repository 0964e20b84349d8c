"""What a worker knows of the other workers of its strategy: which of them fails, is lost or leaves.

If another worker is gone, TensorFlow's collectives fail here with an error that names it.
TensorFlow itself notices only after its heartbeats have failed, and blames the worker that notices
first.
"""

from __future__ import annotations

import atexit
import re
import sys
from typing import Any

import tensorflow as tf

from slurm_resolver.cluster.roles import ranks_of
from slurm_resolver.coordination.client import Client, leave_all
from slurm_resolver.coordination.training_with_servers import TRAIN
from slurm_resolver.coordination.wire import Message
from slurm_resolver.errors import FitError, KerasError
from slurm_resolver.log import exit_at_once, warn
from slurm_resolver.tf import private_names
from slurm_resolver.tf.causes import OF_PEERS, cause_of, lost_task
from slurm_resolver.tf.progress import reporter

_GONE_SECONDS = 4.0  # in which the service names the task that is gone
# In what another task says of its end: the task that has caused it.
_CAUSE = re.compile(r"\w+ \d+ \(rank \d+ on \S+\) is gone.*")
MARK = "slurm_resolver: "  # in the errors of collectives that this package ends
IN_ALL = (
    "Make each call in all workers, as each of them computes its rows: leave out what lets one "
    "worker alone make it, such as `if task_id == 0:`."
)


class Peers:
    """The workers of a strategy, as one of them sees them.

    Attributes:
        names: every worker's name, such as "worker 0"; none if the strategy trains alone.
        name: of this worker.
        index: of this worker.
        client: the connection to the coordination service; None under TF_CONFIG.
        ranks: the workers' names by their ranks, in the order of their indices.
        others: the ranks of the tasks that are no workers.
        call: the method in which they fail together, such as "fit".
        calls: how many calls this worker has begun.
        failure: of another worker, in the current call.
        loss: which worker is lost.
        is_in_step: whether this worker is in a step of all workers.
        is_exchanging: whether it waits in an exchange: a worker that has failed then answers.
    """

    call = ""
    calls = 0
    failure = ""
    loss = ""
    _left = ""  # which worker has ended well
    is_in_step = False
    is_exchanging = False

    def __init__(self, resolver: Any, client: Client | None) -> None:
        global _newest
        _newest = self
        counts = resolver.cluster_spec().as_dict()
        self.names = [
            f"{job} {index}" for job in TRAIN for index in range(len(counts.get(job, ())))
        ]
        self.name = f"{resolver.task_type} {resolver.task_id}"
        self.index = self.names.index(self.name) if self.names else 0
        self.client: Any = client
        if client:
            cluster = resolver.cluster
            self.ranks = dict(zip(ranks_of(cluster.roles, TRAIN), self.names))
            self.others = set(range(cluster.num_tasks)).difference(self.ranks)
            client.listen("told", self._take_failure)
            client.listen("gone", self._take_loss)
            client.listen("left", self._take_goodbyes)

    @property
    def absence(self) -> str:
        """Which worker cannot take part in a step: it is lost, or has ended."""
        return self.loss or self._left

    def reason_of(self, error: BaseException) -> str:
        """Returns why another worker has ended what failed with an error, or ''."""
        reason = str(error).partition(MARK)[2].partition("\n")[0].rstrip("]'")
        if not reason and isinstance(error, OF_PEERS):
            if self.client:
                self.client.wait_for(lambda: self.failure or self.absence, _GONE_SECONDS)
            reason = self.failure or self.absence or self.lost_by(error)
        return reason

    def lost_by(self, error: BaseException) -> str:
        """Returns which worker is gone if an error of TensorFlow says so, or ''."""
        name = lost_task(error, self.names, self.name)
        if name and self.client:
            name = self.client.name_of([*self.ranks][self.names.index(name)])
        return name and _describe_loss(name, "it does not answer TensorFlow")

    def refuse_loss(self) -> None:
        """Raises FitError if another worker is lost, for which this one would wait."""
        if self.loss:
            raise FitError(self.failure or self.loss)

    def _take_failure(self, message: Message) -> None:
        """Ends the call, as another worker has failed in it."""
        name = self.ranks[message["rank"]]
        if name == self.name or not self.call or message["told"] != f"failed {self.calls}":
            return
        self.failure = f"{name} has failed in {self.call}: {message['value']}"
        if not self.is_exchanging:
            abort_collectives(self.failure)

    def _take_loss(self, message: Message) -> None:
        if message["gone"] in self.ranks or "service" in message:
            cause = _CAUSE.search(message["why"])
            name = self.client.name_of(message["gone"])
            reason = cause[0] if cause else _describe_loss(name, message["why"])
            own = self.client.name_of(self.client.address.rank)
            if reason.startswith(own):
                reason = f"{own} was stopped or cut off, and the others have ended without it"
            if not self.loss:  # else it follows from that
                warn("%s", reason)
                self.loss = reason
            abort_collectives(reason)

    def _take_goodbyes(self, message: Message) -> None:
        # These workers may have ended without an error, as this one may soon. Only a step fails.
        left = [rank for rank in self.ranks if rank in message["left"]]
        if left:
            name = self.client.name_of(left[0])
            self._left = f"{name} has ended, and cannot take part in a step. {IN_ALL}"
            if self.is_in_step:
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


def _leave() -> None:
    """Tells the others which error ends this process. If a worker is lost, it ends at once.

    TensorFlow would wait for the answer to a heartbeat, for up to a minute.
    """
    error = getattr(sys, "last_value", None)
    if error is None or _newest is None:
        return
    lost = _newest.lost_by(error)
    leave_all((lost or cause_of(error))[:500])
    if lost or _newest.absence:
        exit_at_once()


_newest: Peers | None = None  # the workers of the newest strategy
# After the functions that the program registers later.
atexit.register(_leave)
