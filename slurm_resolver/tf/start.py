"""The start of a strategy: all its tasks wait for each other, and then watch each other."""

from __future__ import annotations

import contextlib
import faulthandler
import threading
from typing import Any, Callable, Collection, Dict, Iterator, Optional

import tensorflow as tf

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination.client import Client
from slurm_resolver.log import tell_once, warn, warn_once
from slurm_resolver.preflight.ready import wait_until_ready
from slurm_resolver.preflight.transport import (
    TaskDevices,
    find_transport,
    task_devices,
    why_no_gpu,
)

_START_TIMEOUT = 600.0  # seconds
# How errors of TensorFlow's collectives are recognized that this module has caused.
GONE = "slurm_resolver: "
_CHOICE_SECONDS = 60.0  # for tasks that have met; the first look for GPUs takes some


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


def choose_communication(
    given: Optional[Any], client: Optional[Client], resolver: Any, jobs: Collection[str]
) -> Optional[Any]:
    """Returns CommunicationOptions for NCCL if each task has its own GPUs, else None, for gRPC.

    Args:
        given: the program's own CommunicationOptions, which count; None to choose.
        client: this task's connection to the coordination service; None where it trains alone.
        resolver: of this task, which may be another class's.
        jobs: the jobs whose tasks call this; every one of them must.
    """
    usable = len(tf.config.get_visible_devices("GPU"))
    cluster = getattr(resolver, "cluster", None)
    if not isinstance(cluster, Cluster):
        return given
    if cluster.gpus and not usable:
        warn_once(
            f"Slurm grants this task the GPUs {','.join(cluster.gpus)}, but TensorFlow finds none "
            f"and computes on CPUs: {why_no_gpu()}"
        )
    if client is None or cluster.task is None:
        nccl = usable > 1
    else:
        others = [task.rank for task in cluster.tasks if task.job not in jobs]
        told = client.gather(
            "the choice of NCCL", task_devices(cluster, usable), _CHOICE_SECONDS, without=others
        )
        tasks: Dict[int, TaskDevices] = {
            rank: TaskDevices(*devices) for rank, devices in enumerate(told) if devices is not None
        }
        transport = find_transport(tasks, cluster.name_of)
        nccl = transport.nccl
        if given is None:
            tell_once(": ".join(filter(None, (transport.sentence, transport.remedy))))
    if given is not None or not nccl:
        return given
    return tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.NCCL
    )


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
