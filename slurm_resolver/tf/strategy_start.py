"""The start of a strategy: all its tasks wait for each other, and choose NCCL or gRPC alike.

TensorFlow's own start waits without a message for tasks that are missing. Here, all tasks meet
before; those that are missing are named, and TensorFlow starts only when all are there.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from faulthandler import cancel_dump_traceback_later, dump_traceback_later

import tensorflow as tf

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination.training_group import Group
from slurm_resolver.errors import RendezvousError
from slurm_resolver.log import tell_once, warn_once
from slurm_resolver.start.probe import listening
from slurm_resolver.start.ready import wait_until_ready
from slurm_resolver.start.transport import (
    TaskDevices,
    find_transport,
    task_devices,
    why_no_gpu,
)
from slurm_resolver.tf.resolver_cluster import cluster_of

_served: set[str] = set()  # the addresses at which TensorFlow listens in this process


@contextmanager
def starting_together(
    resolver: object,
    timeout: float | None,
    jobs: Collection[str],
) -> Iterator[Group | None]:
    """Waits until the tasks of these jobs have come, and limits the time that the block takes.

    TensorFlow starts in the block. If that takes longer than `timeout`, which only a network that
    begins to drop packets can cause, the tracebacks are printed and the process ends with status 1:
    nothing else works while TensorFlow holds the interpreter.

    Args:
        resolver: of this task; it may be of another class.
        timeout: seconds; None is SLURM_RESOLVER_START_TIMEOUT, or 600.
        jobs: the jobs of the tasks.

    Returns:
        The tasks that start; None if this one is alone.

    Raises:
        RendezvousError: in every task, as `wait_until_ready`; if this process has a strategy.
    """
    cluster = cluster_of(resolver)
    if not cluster or not cluster.step.is_live:
        yield None
        return
    seconds = timeout or cluster.step.start_seconds
    _refuse_second(cluster)
    group = wait_until_ready(cluster, seconds, jobs)
    if group:
        dump_traceback_later(seconds, exit=True)
    try:
        yield group
    finally:
        if group:
            cancel_dump_traceback_later()
    if cluster.task and "ps" not in cluster.roles:
        _served.add(cluster.task.address)


def _refuse_second(cluster: Cluster) -> None:
    """Raises RendezvousError if this task has a strategy already, whose server has its port."""
    task = cluster.task
    assert task
    if task.address in _served:
        raise RendezvousError(
            f"this process has a strategy already, whose server listens at {task.address}, and "
            "TensorFlow starts only one in a process. Create the strategy once, before any loop, "
            "and each new model in its scope; or train each model in its own process, one after "
            "the other."
        )
    if len(cluster.tasks) == 1:  # else all tasks say it: `wait_until_ready`
        with listening(task) as problem:
            if problem:
                raise RendezvousError(
                    f"{cluster.name_of(task.rank)}, the only task of its step, cannot listen at "
                    f"{problem}: a second program in the same task, such as a second notebook? To "
                    "train alone beside it, set SLURM_RESOLVER=off, or give it another port_base."
                )


def choose_communication(
    of_program: tf.distribute.experimental.CommunicationOptions | None,
    group: Group | None,
    resolver: object,
) -> tf.distribute.experimental.CommunicationOptions | None:
    """Returns CommunicationOptions for NCCL if each task has its own GPUs, else the program's.

    All tasks of the group call this with what `starting_together` gave. `of_program` are the
    program's options, or None. If they name an implementation, they are returned as they are.
    """
    options = of_program or tf.distribute.experimental.CommunicationOptions()
    is_free = options.implementation.name == "AUTO"
    usable = len(tf.config.get_visible_devices("GPU"))
    cluster = cluster_of(resolver)
    if cluster is None:
        return of_program
    if cluster.gpus and not usable:
        why = why_no_gpu(tf.test.is_built_with_cuda(), tf.test.is_built_with_rocm())
        warn_once(
            f"Slurm grants this task the GPUs {','.join(cluster.gpus)}, but TensorFlow finds none "
            f"and computes on CPUs: {why}"
        )
    nccl = usable > 1
    if group:
        devices_of = group.gather(
            "the choice of NCCL",
            task_devices(cluster, usable),
            60.0,  # the tasks have met; the first look for GPUs takes some time
        )
        nccl, sentence, remedy = find_transport(
            {name: TaskDevices(*devices) for name, devices in devices_of.items()}
        )
        text = f"{sentence}: {remedy}".rstrip(": ")
        if "SLURM_STEP_GPUS" in text:
            warn_once(text)
        elif is_free:
            tell_once(text)
    if not (is_free and nccl):
        return of_program
    with_nccl = copy.copy(options)
    with_nccl.implementation = type(options.implementation).NCCL
    return with_nccl
