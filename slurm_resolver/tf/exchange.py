"""What the workers of a strategy tell each other: what each is about to do, and that it failed."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any, Iterator, List, Optional

import tensorflow as tf

from slurm_resolver.errors import FitError

# How long a worker that fails waits for the others to fail as well, which then needs no telling.
_SECONDS = 5.0
_FAILED = "has failed in fit: "


class Workers:
    """The workers of a strategy, as one of them sees them; all make it at the same point.

    Attributes:
        index: this worker's number, from 0.
        names: every worker's name, such as "worker 0"; none where the strategy trains alone.
        together: whether they are within a block that fails together.
    """

    def __init__(self, strategy: Any) -> None:
        resolver = strategy.cluster_resolver
        counts = resolver.cluster_spec().as_dict()
        jobs = [job for job in ("chief", "worker") for _ in counts.get(job, ())]
        self.names = [f"{job} {jobs[:place].count(job)}" for place, job in enumerate(jobs)]
        own = f"{resolver.task_type} {resolver.task_id}"
        self.index = self.names.index(own) if self.names else 0
        self._strategy = strategy
        self._fits = 0
        self.together = False
        signature = [tf.TensorSpec([None], tf.int32)]
        self._gather = tf.function(self._gather_ints, input_signature=signature, autograph=False)

    def exchange(self, value: Any) -> List[Any]:
        """Returns what each worker has called this with, by its index; it must fit into JSON."""
        encoded = list(json.dumps(value).encode())
        sizes = self._all(tf.constant([len(encoded)], tf.int32))
        longest = max(size[0] for size in sizes)
        texts = self._all(tf.constant(encoded + [0] * (longest - len(encoded)), tf.int32))
        return [json.loads(bytes(text[: size[0]])) for text, size in zip(texts, sizes)]

    def _all(self, values: tf.Tensor) -> List[List[int]]:
        gathered = self._strategy.experimental_local_results(self._gather(values))[0]
        replicas = self._strategy.num_replicas_in_sync // len(self.names)
        rows: List[List[int]] = gathered.numpy().reshape(-1, values.shape[0]).tolist()
        return rows[::replicas]

    def _gather_ints(self, values: tf.Tensor) -> Any:
        def gather() -> Any:
            return tf.distribute.get_replica_context().all_gather(tf.identity(values), axis=0)

        return self._strategy.run(gather)

    @contextlib.contextmanager
    def failing_together(self) -> Iterator[None]:
        """Ends the block in all workers when it fails in one of them, with that one's error.

        Without it they wait for it, until TensorFlow finds that its process has ended. Where it
        fails in all of them, each raises its own error, and all may go on.

        Raises:
            FitError: when another worker has failed.
        """
        self._fits += 1
        self.together = True
        try:
            yield
        except Exception as error:
            reason = _reason(error)
            if reason is not None:
                raise FitError(reason) from error
            first = f"{type(error).__name__}: {error}".partition("\n")[0][:500]
            self._tell(f"{self.names[self.index]} {_FAILED}{first}")
            raise
        finally:
            self.together = False

    def _tell(self, failure: str) -> None:
        """Ends the others' collectives, unless they fail as well.

        By the coordination service, which has no public name; a TensorFlow with other names, or one
        that has lost its leader, only finds out later by itself.
        """
        from tensorflow.python.eager import context

        key, end = f"slurm_resolver/fit/{self._fits}", time.monotonic() + _SECONDS
        with contextlib.suppress(Exception):
            service = context.context()
            service.set_config_key_value(f"{key}/{self.index}", failure)
            try:
                for index in range(len(self.names)):
                    left = max(1, int(1000 * (end - time.monotonic())))
                    service.get_config_key_value(f"{key}/{index}", left)
            except tf.errors.DeadlineExceededError:
                service.report_error_to_cluster(tf.errors.ABORTED, failure)


def _reason(error: Exception) -> Optional[str]:
    """Returns what another worker has told of its failure, if that is what this error is about."""
    if not isinstance(error, tf.errors.OpError) or _FAILED not in str(error):
        return None
    before, _, after = str(error).partition(_FAILED)
    worker = " ".join(before.split()[-2:])
    return f"{worker} {_FAILED}{after.splitlines()[0]}"
