"""The servers of a tf.data service: of the dispatcher and of the data workers."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import signal
import socket
import threading
import time
from typing import Any, Callable, Iterator, Optional

import tensorflow as tf

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.jobs import DATA_WORKER, DISPATCHER

_PAUSE = 0.05  # seconds between two looks for the dispatcher
_CONNECT_SECONDS = 3.0
_START_SECONDS = 120.0  # to register with a dispatcher that has listened a moment ago


def start_data_server(cluster: Cluster, has_ended: Callable[[], bool]) -> Optional[Any]:
    """Starts this task's `DispatchServer` or `WorkerServer`; None if the job has ended before."""
    service, own = tf.data.experimental.service, cluster.task
    assert own is not None
    port = int(own.address.rpartition(":")[2])
    if own.job == DISPATCHER:
        # All data workers, in the order of their indices: ShardingPolicy.DATA and FILE need it.
        workers = [task.address for task in cluster.tasks if task.job == DATA_WORKER]
        config = service.DispatcherConfig(port, worker_addresses=workers)
        return service.DispatchServer(config)
    dispatcher = cluster.addresses[DISPATCHER][0]
    # A WorkerServer that waits for its dispatcher holds the interpreter, and this process could not
    # learn that the job has ended.
    while not _listens(dispatcher):
        if has_ended():
            return None
        time.sleep(_PAUSE)
    faulthandler.dump_traceback_later(_START_SECONDS, exit=True)
    try:
        return service.WorkerServer(service.WorkerConfig(dispatcher, own.address, port))
    finally:
        faulthandler.cancel_dump_traceback_later()


def keep_until_exit(server: Any) -> None:
    """Keeps a server of a tf.data service from being stopped before the process ends.

    A server that stops waits until all requests are answered: an hour if the dispatcher is lost.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


@contextlib.contextmanager
def ignoring_signals() -> Iterator[None]:
    """Ignores the signals by which Slurm announces the end of the step or job to all tasks.

    The tasks that train may save then, and need their data. This task ends when they have ended.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():  # Python sets handlers only there
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            if signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
