"""Tasks that serve others: parameter servers, workers beside a coordinator, a tf.data service.

`tf.distribute.Server.join()` never returns, nor does that of a tf.data service's servers. A task
that serves ends when the job's monitor says that the tasks that train have ended.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Dict, Optional, Union

import tensorflow as tf

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.data_service import DATA_JOBS, DISPATCHER
from slurm_resolver.errors import JobsError
from slurm_resolver.parameter_server import exit_status
from slurm_resolver.parameter_server.member import Member
from slurm_resolver.parameter_server.monitor import Monitor
from slurm_resolver.parameter_server.protocol import (
    SERVING_JOBS,
    START_SECONDS,
    monitor_address,
    print_line,
)
from slurm_resolver.parameter_server.restarts import tell_job_has_ended, tell_takes_part
from slurm_resolver.rendezvous.task_claim import find_claimant
from slurm_resolver.tf.data_server import (
    keep_until_exit,
    signals_left_to_those_who_train,
    start_data_server,
)

Participant = Union[Monitor, Member]

_FAIL_FAST = {"GRPC_FAIL_FAST": "use_caller"}

_participants: Dict[Any, Participant] = {}  # one for all resolvers of the same cluster
_set_variables: Dict[str, str] = {}  # those that this module has set


def take_part(cluster: Cluster) -> Optional[Participant]:
    """Returns this task's part in the job, on which the others rely from now on.

    None where it has none: see `monitor_address`; and in a child process of the task.
    """
    address = monitor_address(cluster)
    if address is None or not cluster.takes_part():
        return None
    # A call to a server that has ended fails at once, instead of waiting for it.
    for name, value in _FAIL_FAST.items() if _has_ps(cluster) else ():
        if name not in os.environ:
            os.environ[name] = _set_variables[name] = value
    if cluster.task is not None and cluster.task.job == "chief" and _has_ps(cluster):
        _let_coordinators_end()
    key = (address.identity, address.rank, address.host, address.port)
    if key not in _participants:
        tell_takes_part()
        is_monitor = address.rank == address.monitor_rank
        _participants[key] = Monitor(address) if is_monitor else Member(address)
    return _participants[key]


def serve(
    cluster: Cluster,
    spec: Any,
    protocol: Optional[str] = None,
    server: Optional[Any] = None,
    start_timeout: float = START_SECONDS,
) -> int:
    """Serves by this `tf.train.ClusterSpec`, and returns the exit status.

    See `SlurmClusterResolver.serve`.
    """
    _check(cluster)
    own = cluster.task
    participant = take_part(cluster)
    assert own is not None
    if participant is None:
        assert cluster.rendezvous is not None
        claimant = find_claimant(cluster.rendezvous)
        raise JobsError(
            f"serve() in process {os.getpid()}, but {own.job} {own.index} is process "
            f"{claimant or '(unknown)'}, which made its resolver first and still runs: this one is "
            "its child, or a second program in the task. Call serve() there."
        )
    with contextlib.ExitStack() as stack:
        if own.job in DATA_JOBS:
            stack.enter_context(signals_left_to_those_who_train())
        participant.serve(start_timeout)
        if own.job in DATA_JOBS:
            keep_until_exit(server or start_data_server(cluster, lambda: participant.decided))
        elif server is None and not participant.decided:
            server = tf.distribute.Server(spec, own.job, own.index, protocol=protocol)
        result = participant.wait()
    tell_job_has_ended()
    _undo()
    if result.status:
        print_line(f"{own.job} {own.index} (rank {own.rank} on {own.node}): {result.message}")
    return result.status


def _undo() -> None:
    """Takes back what `take_part` has changed in this process: the job has ended."""
    exit_status.stop_recording()
    for name, value in _set_variables.items():
        if os.environ.get(name) == value:
            del os.environ[name]
    _set_variables.clear()


def _check(cluster: Cluster) -> None:
    """Raises JobsError in a task that should not serve."""
    own = cluster.task
    jobs = sorted({task.job for task in cluster.tasks})
    if own is None:
        raise JobsError(
            "serve() in a process without a cluster: it is for the tasks of a Slurm step that "
            "serve others. Start the program with srun; or on this machine alone with "
            "`slurm-resolver run`."
        )
    if not {"ps", DISPATCHER} & set(jobs) or not {"chief", "worker"} & set(jobs):
        raise JobsError(
            f"serve() in {own.job} {own.index} of a cluster with the jobs {', '.join(jobs)}; "
            "expected a ps or dispatcher, and a chief or worker that trains. Give jobs such as "
            "{'ps': 1, 'worker': -1}, or do not call it."
        )
    if own.job not in SERVING_JOBS and (own.job != "worker" or not {"chief", "ps"} <= set(jobs)):
        raise JobsError(
            f"serve() in {own.job} {own.index}, which trains; expected a ps, a dispatcher, a "
            "data_worker, or a worker beside a chief and a ps. Call it as `if resolver.task_type "
            "== 'ps': sys.exit(resolver.serve())`, under ParameterServerStrategy in the workers "
            "too."
        )


def _has_ps(cluster: Cluster) -> bool:
    return any(task.job == "ps" for task in cluster.tasks)


def _let_coordinators_end() -> None:
    """Lets a coordinator end that has lost a worker; else it waits for that worker for ever.

    A thread of TensorFlow's ClusterCoordinator waits for the worker to come back, and holds the
    lock that `stop`, called by `ClusterCoordinator.__del__`, needs (tensorflow/python/distribute/
    coordinator/cluster_coordinator.py). Tasks of a Slurm step do not come back. Without the lock,
    all that may happen is that this daemon thread goes on waiting.
    """
    from tensorflow.python.distribute.coordinator import cluster_coordinator

    handler = getattr(cluster_coordinator, "WorkerPreemptionHandler", None)
    if handler is None or handler.stop.__module__ == __name__:
        return
    before = handler.stop

    def stop(self: Any) -> None:
        finish = getattr(self, "_cluster_due_for_update_or_finish", None)
        if finish is None or not hasattr(self, "_should_preemption_thread_run"):
            before(self)  # another TensorFlow, with other names
            return
        self._should_preemption_thread_run = False
        finish.set()

    handler.stop = stop
