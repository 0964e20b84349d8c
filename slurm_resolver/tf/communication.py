"""Chooses NCCL or gRPC for the gradients of all workers alike, before TensorFlow starts."""

from __future__ import annotations

from typing import Any, Collection, Dict, Optional

import tensorflow as tf

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination.client import Client
from slurm_resolver.log import tell_once, warn_once
from slurm_resolver.preflight.transport import (
    TaskDevices,
    find_transport,
    task_devices,
    why_no_gpu,
)

_SECONDS = 60.0  # in which tasks that have met meet again; the first look for GPUs takes some


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
            "the choice of NCCL", task_devices(cluster, usable), _SECONDS, without=others
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
