"""Tasks that serve others: parameter servers, and workers beside a coordinator.

The `join()` of TensorFlow's servers never returns. A task that serves ends when the coordination
service says that the training is over: see `coordination.training_with_servers`.
"""

from __future__ import annotations

import atexit
import os
import sys
from threading import Event, Thread
from time import monotonic, sleep

import tensorflow as tf

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination import TRAIN, ServiceAddress
from slurm_resolver.coordination.client import connect
from slurm_resolver.coordination.member import Member
from slurm_resolver.coordination.training_with_servers import announcement
from slurm_resolver.errors import JobsError
from slurm_resolver.log import exit_at_once, print_line
from slurm_resolver.start.probe import answers
from slurm_resolver.start.ready import offer_readiness
from slurm_resolver.tf import private_names
from slurm_resolver.tf.private_names import Method

# One for all resolvers of the same cluster in a process; a forked child has none.
_members: dict[tuple[ServiceAddress, str, int], Member] = {}
_ends = Event()  # set when this process ends without an error


@atexit.register
def _note_end() -> None:
    if getattr(sys, "last_value", None) is None:
        _ends.set()


def _end_process(member: Member) -> None:
    """Ends a process that trains if the training fails; TensorFlow would wait without end."""
    outcome = member.await_over()
    if not outcome.status or member.announced["serves"] or _ends.is_set():
        return
    print_line(f"{member.name}: {outcome.message}. This process ends")
    if not _ends.wait(5.0):  # it may end by itself
        exit_at_once()


def join(cluster: Cluster) -> None:
    """Connects this process to the coordination service if it needs that from the start.

    A task of a step with servers takes part in their training. An evaluator's program never needs
    the service, but the others may meet in its process.
    """
    task = cluster.task
    if not task or not cluster.step.is_live:
        return
    _check_connections(task.address, cluster.step.start_seconds)
    take_part(cluster)
    service = cluster.service
    if service and service.hosts_service and task.job == "evaluator":
        connect(service, cluster.name_of)


def _check_connections(own_address: str, seconds: float) -> None:
    """Lets `tf.config.experimental_connect_to_cluster` fail where it would wait without end.

    It waits until there is a server at each address of the cluster, also at this task's own.
    """

    def connect(original: Method, server_def: tf.train.ServerDef) -> None:
        jobs = {job.name: dict(job.tasks) for job in server_def.cluster.job}
        del jobs[server_def.job_name][server_def.task_index]  # TensorFlow starts this server
        until = monotonic() + seconds
        addresses = [address for tasks in jobs.values() for address in tasks.values()]
        # With parameter servers, the strategy has waited for them.
        for address in [] if "ps" in jobs else addresses:
            while not answers(address):
                if address == own_address or monotonic() > until:
                    raise JobsError(
                        "tf.config.experimental_connect_to_cluster waits without end unless all "
                        f"tasks of the cluster serve, and no server listens at {address}. Remove "
                        "the call: the strategies connect by themselves. To connect from one task, "
                        "start a tf.distribute.Server in each of the others."
                    )
                sleep(0.2)
        original(server_def)

    private_names.SET_SERVER_DEF.replace(connect)


def take_part(cluster: Cluster) -> Member | None:
    """Announces this task to those that serve and train; returns None if it is not among them."""
    service = cluster.service
    this_task = cluster.task
    if not service or not this_task or "ps" not in cluster.roles:
        return None
    announced = announcement(
        [(task.job, task.index, task.address) for task in cluster.tasks], this_task.rank
    )
    if not announced:
        return None
    # A call to a server that has ended fails at once, instead of waiting for it.
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    if this_task.job == "chief":
        private_names.STOP_PREEMPTION.replace(_stop)
    key = (service, announced["cluster"], os.getpid())
    if key not in _members:
        _members[key] = Member(connect(service, cluster.name_of), announced)
        Thread(target=_end_process, args=[_members[key]], daemon=True).start()
    return _members[key]


def can_serve(cluster: Cluster) -> bool:
    """Whether this task may only serve those that train: a ps, or a worker beside a chief."""
    jobs = cluster.roles.keys()
    servers = {"ps", "worker"} if {"chief", "ps"} <= jobs else {"ps"}
    return bool(cluster.task and cluster.task.job in servers and jobs & {*TRAIN})


def serve(
    resolver: tf.distribute.cluster_resolver.ClusterResolver,
    server: tf.distribute.Server | None,
    start_timeout: float | None,
) -> int:
    """Serves, and returns the exit status: see `SlurmClusterResolver.serve`."""
    cluster = resolver.cluster
    task = cluster.task
    if not task or not can_serve(cluster):
        where = f"{task.job} {task.index}" if task else "a process"
        raise JobsError(
            f"serve() in {where} of a cluster with the jobs {', '.join(cluster.roles) or 'none'}; "
            "expected a ps, or a worker beside a chief and a ps, in a cluster in which others "
            "train. Start the program with srun, or without Slurm with `slurm-resolver run`, and "
            "call serve() as `if resolver.task_type == 'ps': sys.exit(resolver.serve())`."
        )
    member = take_part(cluster)
    assert member
    if start_timeout is None:
        start_timeout = cluster.step.start_seconds
    problem = member.serve(start_timeout)
    if member.client.refusal:
        raise JobsError(f"serve() in process {os.getpid()}: {problem}")
    if problem:
        print_line(f"{member.name}: {problem}")
        return 1
    offer_readiness(cluster)
    if server is None and not member.outcome:
        server = tf.distribute.Server(
            resolver.cluster_spec(), task.job, task.index, protocol=resolver.rpc_layer
        )
    outcome = member.await_over()
    if outcome.status:
        print_line(f"{member.name}: {outcome.message}")
    return outcome.status


def _stop(original: Method, handler: object) -> None:
    """Stops a thread of TensorFlow's ClusterCoordinator that may wait for a worker without end.

    The thread waits for the worker to come back, and holds the lock that `stop`, called by
    `ClusterCoordinator.__del__`, needs (tensorflow/python/distribute/coordinator/
    cluster_coordinator.py). Without that lock, this daemon thread may wait on.
    """
    private_names.SHOULD_RUN.set(handler, False)
    private_names.UPDATE_OR_FINISH.of(handler).set()
