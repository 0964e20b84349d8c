"""What the workers of a strategy tell each other: what each is about to do, and that one failed."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Any, Dict, Iterator, List, Optional

import tensorflow as tf

from slurm_resolver.coordination.client import Client
from slurm_resolver.errors import FitError, RendezvousError
from slurm_resolver.log import warn

# How long a failed worker waits for the others to fail as well; then none has to be told.
_SECONDS = 5.0
_CALL = "this call of fit, evaluate or predict"
# TensorFlow's errors where a peer is gone, and how long the service may take to name it.
_OF_PEERS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
_GONE_SECONDS = 4.0
_MARK = "slurm_resolver: "  # in the errors of collectives that this module ends


class Workers:
    """The workers of a strategy, as one of them sees them; all make it at the same point.

    Once another worker is gone, TensorFlow's collectives fail here with an error that names it.
    TensorFlow notices only after its heartbeats have failed, and names the worker that notices.

    Attributes:
        index: this worker's number, from 0.
        names: every worker's name, such as "worker 0"; none where the strategy trains alone.
        together: whether they are within a block that fails together.
    """

    def __init__(self, strategy: Any, client: Optional[Client]) -> None:
        resolver = strategy.cluster_resolver
        counts = resolver.cluster_spec().as_dict()
        jobs = [job for job in ("chief", "worker") for _ in counts.get(job, ())]
        self.names = [f"{job} {jobs[:place].count(job)}" for place, job in enumerate(jobs)]
        own = f"{resolver.task_type} {resolver.task_id}"
        self.index = self.names.index(own) if self.names else 0
        self.together = False
        self._strategy, self._client = strategy, client
        self._calls = 0
        self._failure = ""  # of another worker, in the current call
        self._loss, self._is_lost = "", threading.Event()  # which worker is gone or has ended
        signature = [tf.TensorSpec([None], tf.int32)]
        self._gather = tf.function(self._gather_line, input_signature=signature, autograph=False)
        if client is not None:
            cluster = resolver.cluster
            by_name = {f"{task.job} {task.index}": task.rank for task in cluster.tasks}
            self._ranks = [by_name[name] for name in self.names]
            self._others = sorted({task.rank for task in cluster.tasks}.difference(self._ranks))
            client.listen("told", self._take_failure)
            client.listen("gone", self._take_loss)
            client.listen("left", self._take_goodbyes)

    def exchange(self, value: Any) -> List[Any]:
        """Returns what each worker has called this with, by its index; it must fit into JSON.

        Raises:
            FitError: where another worker has ended, or is lost.
        """
        if self._client is not None:
            try:
                told = self._client.gather(_CALL, value, None, self._others)
            except RendezvousError as error:
                raise FitError(str(error)) from error
            return [told[rank] for rank in self._ranks]
        line = tf.constant(list(json.dumps(value).encode() + b"\n"), tf.int32)
        gathered = self._strategy.experimental_local_results(self._gather(line))[0]
        replicas = self._strategy.num_replicas_in_sync // len(self.names)
        lines = bytes(gathered.numpy().tolist()).splitlines()
        return [json.loads(line) for line in lines[::replicas]]

    def _gather_line(self, line: tf.Tensor) -> Any:
        """Returns all workers' lines, by TensorFlow: there is no service under TF_CONFIG."""

        def gather() -> Any:
            return tf.distribute.get_replica_context().all_gather(tf.identity(line), axis=0)

        return self._strategy.run(gather)

    @contextlib.contextmanager
    def failing_together(self) -> Iterator[None]:
        """Ends the block in all workers when it fails in one of them, with that worker's error.

        Where it fails in all of them, each raises its own error, and all may continue.

        Raises:
            FitError: when another worker has failed or is lost.
        """
        self._calls += 1
        self._failure = ""
        self.together = True
        try:
            yield
        except Exception as error:
            text = str(error)
            reason = text.partition(_MARK)[2].partition("\n")[0]
            if not reason and self._client is not None and isinstance(error, _OF_PEERS):
                if not self._failure:
                    self._is_lost.wait(_GONE_SECONDS)
                reason = self._failure or self._loss
            if reason and isinstance(error, tf.errors.OpError):
                raise FitError(self._failure or reason) from error
            if self._client is not None:
                topic = f"failed {self._calls}"
                self._client.tell(topic, f"{type(error).__name__}: {text}".partition("\n")[0][:500])
                self._client.told(topic, self._ranks, _SECONDS)
            raise
        finally:
            self.together = False

    def _take_failure(self, message: Dict[str, Any]) -> None:
        """Notes that another worker has failed in the same call, which cannot end without it."""
        rank = message["rank"]
        if message["told"] != f"failed {self._calls}" or rank == self._ranks[self.index]:
            return
        if self.together:
            name = self.names[self._ranks.index(rank)]
            self._failure = f"{name} has failed in fit: {message['value']}"
            timer = threading.Timer(_SECONDS, self._abort, [self._calls])
            timer.daemon = True
            timer.start()

    def _abort(self, calls: int) -> None:
        if self.together and self._calls == calls:
            _abort_collectives(self._failure)

    def _take_loss(self, message: Dict[str, Any]) -> None:
        rank = message["gone"]
        if self._client is None or (rank is not None and rank not in self._ranks):
            return
        name = self._client.address.name if rank is None else self._client.name_of(rank)
        where = f" {message['where']}" if message["where"] else ""
        reason = f"{name} is gone{where}: {message['why']}"
        warn("%s", reason)
        self._loss = self._loss or reason
        self._is_lost.set()
        _abort_collectives(reason)

    def _take_goodbyes(self, message: Dict[str, Any]) -> None:
        # These workers may have ended well, as this one is about to do: nothing fails by that.
        ended = sorted(set(self._ranks).intersection(message["left"]))
        if ended and self._client is not None:
            self._loss = self._loss or f"{self._client.name_of(ended[0])} has ended"
            self._is_lost.set()


def _abort_collectives(reason: str) -> None:
    """Ends this process's collectives, and all later ones, with an AbortedError that says why."""
    from tensorflow.python.eager import context

    # TensorFlow's strategies do the same when their own check finds a peer gone.
    context.context().abort_collective_ops(tf.errors.ABORTED, _MARK + reason)
