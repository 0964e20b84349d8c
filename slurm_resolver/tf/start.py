"""The start of a strategy: all its tasks wait for each other, and then watch each other."""

from __future__ import annotations

import contextlib
import faulthandler
import threading
from typing import Any, Callable, Collection, Dict, Iterator, Optional

import tensorflow as tf

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination.client import Client
from slurm_resolver.log import warn
from slurm_resolver.preflight.ready import wait_until_ready

_START_TIMEOUT = 600.0  # seconds
# How errors of TensorFlow's collectives are recognized that this module has caused.
GONE = "slurm_resolver: "


@contextlib.contextmanager
def starting_together(
    resolver: Any, timeout: Optional[float], jobs: Collection[str]
) -> Iterator[Optional[Client]]:
    """Waits until the tasks of these jobs have come, and limits the time that the block takes.

    Without `timeout`, SLURM_RESOLVER_START_TIMEOUT counts, else 600 s.

    TensorFlow starts in the block. If that takes longer than `timeout`, which only a network that
    drops packets can cause, the tracebacks are printed and the process ends with status 1: nothing
    else works while TensorFlow holds the interpreter.

    Returns:
        This task's connection to the coordination service; None where it is alone.

    Raises:
        RendezvousError: in every task, as `wait_until_ready`.
    """
    cluster, client = getattr(resolver, "cluster", None), None
    if isinstance(cluster, Cluster) and cluster.step.is_live:
        if timeout is None:
            timeout = cluster.step.start_timeout or _START_TIMEOUT
        client = wait_until_ready(cluster, timeout, jobs)
    if client is None:
        yield None
        return
    assert timeout is not None
    faulthandler.dump_traceback_later(timeout, exit=True)
    try:
        yield client
    finally:
        faulthandler.cancel_dump_traceback_later()


class Peers:
    """The tasks that train with this one.

    Once one of them is gone, TensorFlow's collectives fail here, and say so. TensorFlow itself
    notices after its heartbeats have failed for some time, and then blames the task that notices.

    Attributes:
        is_gone: set when one of them is gone or has ended; then `reason` says which, where it was,
            and why.
    """

    def __init__(self, client: Client, cluster: Cluster, jobs: Collection[str]) -> None:
        self.is_gone = threading.Event()
        self.reason = ""
        self._client, self._cluster = client, cluster
        self._ranks = {task.rank for task in cluster.tasks if task.job in jobs}
        client.listen("gone", self._note)
        client.listen("left", self._note_end)

    def _note(self, message: Dict[str, Any]) -> None:
        rank = message["gone"]
        if rank is not None and rank not in self._ranks:
            return
        name = self._client.address.name if rank is None else self._cluster.name_of(rank)
        where = f" {message['where']}" if message["where"] else ""
        reason = f"{name} is gone{where}: {message['why']}"
        warn("%s", reason)
        self.reason = self.reason or reason
        self.is_gone.set()
        abort_collectives(reason)

    def _note_end(self, message: Dict[str, Any]) -> None:
        # They may have ended well, as this task is about to do: nothing fails because of that.
        ended = sorted(self._ranks.intersection(message["left"]))
        if ended:
            self.reason = self.reason or f"{self._cluster.name_of(ended[0])} has ended"
            self.is_gone.set()


def abort_collectives(reason: str) -> None:
    """Ends this process's collectives, and all later ones, with an AbortedError that says why."""
    from tensorflow.python.eager import context

    # TensorFlow's strategies do the same when their own check finds a peer gone.
    abort: Callable[[int, str], None] = context.context().abort_collective_ops
    abort(tf.errors.ABORTED, GONE + reason)
