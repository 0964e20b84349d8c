"""What the workers of a strategy tell each other: what each is about to do, and that it failed."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Any, Dict, Iterator, List, Optional

import tensorflow as tf

from slurm_resolver.coordination.client import Client
from slurm_resolver.errors import FitError, RendezvousError
from slurm_resolver.tf.start import GONE, Peers, abort_collectives

# How long a worker that fails waits for the others to fail as well, which then needs no telling.
_SECONDS = 5.0
_CALL = "this call of fit, evaluate or predict"  # what workers tell each other about
# The errors of collectives whose peer is gone, and how long the news of that may take.
_OF_PEERS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
_GONE_SECONDS = 4.0


class Workers:
    """The workers of a strategy, as one of them sees them; all make it at the same point.

    Attributes:
        index: this worker's number, from 0.
        names: every worker's name, such as "worker 0"; none where the strategy trains alone.
        together: whether they are within a block that fails together.
    """

    def __init__(self, strategy: Any, client: Optional[Client], peers: Optional[Peers]) -> None:
        resolver = strategy.cluster_resolver
        counts = resolver.cluster_spec().as_dict()
        jobs = [job for job in ("chief", "worker") for _ in counts.get(job, ())]
        self.names = [f"{job} {jobs[:place].count(job)}" for place, job in enumerate(jobs)]
        own = f"{resolver.task_type} {resolver.task_id}"
        self.index = self.names.index(own) if self.names else 0
        self.together = False
        self._strategy = strategy
        self._client, self._peers = client, peers
        self._calls = 0
        self._failure = ""  # of another worker, in the current call
        signature = [tf.TensorSpec([None], tf.int32)]
        self._gather = tf.function(self._gather_line, input_signature=signature, autograph=False)
        if client is not None:
            cluster = resolver.cluster
            by_name = {f"{task.job} {task.index}": task.rank for task in cluster.tasks}
            self._ranks = [by_name[name] for name in self.names]
            self._others = sorted({task.rank for task in cluster.tasks}.difference(self._ranks))
            client.listen("told", self._hear)

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
        """Ends the block in all workers when it fails in one of them, with that one's error.

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
            reason = _reason(error) or self._find_gone(error)
            if reason:
                raise FitError(self._failure or reason) from error
            if self._client is not None:
                first = f"{type(error).__name__}: {error}".partition("\n")[0][:500]
                topic = f"failed {self._calls}"
                self._client.tell(topic, first)
                self._client.told(topic, self._ranks, _SECONDS)
            raise
        finally:
            self.together = False

    def _find_gone(self, error: Exception) -> str:
        """Returns which peer is gone, where TensorFlow has noticed it first; else ''."""
        if self._peers is None or not isinstance(error, _OF_PEERS):
            return ""
        if not self._failure:
            self._peers.is_gone.wait(_GONE_SECONDS)
        return self._failure or self._peers.reason

    def _hear(self, message: Dict[str, Any]) -> None:
        """Notes that another worker has failed in the same call, which has no end without it."""
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
            abort_collectives(self._failure)


def _reason(error: Exception) -> str:
    """Returns why this process has ended its own collectives, if that is what the error is."""
    if not isinstance(error, tf.errors.OpError) or GONE not in str(error):
        return ""
    return str(error).partition(GONE)[2].splitlines()[0]
