"""The start of a strategy: all its tasks wait for each other."""

from __future__ import annotations

import contextlib
import faulthandler
from typing import Any, Collection, Iterator, Optional

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination.client import Client
from slurm_resolver.preflight.ready import wait_until_ready

_START_TIMEOUT = 600.0  # seconds


@contextlib.contextmanager
def starting_together(
    resolver: Any, timeout: Optional[float], jobs: Collection[str]
) -> Iterator[Optional[Client]]:
    """Waits until the tasks of these jobs have come, and limits the time that the block takes.

    TensorFlow starts in the block. If that takes longer than `timeout`, which only a network that
    drops packets can cause, the tracebacks are printed and the process ends with status 1: nothing
    else works while TensorFlow holds the interpreter.

    Args:
        resolver: of this task, which may be another class's.
        timeout: seconds; None is SLURM_RESOLVER_START_TIMEOUT, or 600.
        jobs: the jobs of the tasks.

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
    if client is None or timeout is None:
        yield None
        return
    faulthandler.dump_traceback_later(timeout, exit=True)
    try:
        yield client
    finally:
        faulthandler.cancel_dump_traceback_later()
