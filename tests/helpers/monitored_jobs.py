"""Parameter server jobs of several nodes, all of whose addresses are on this machine."""

from __future__ import annotations

from typing import Optional, Sequence

from slurm_resolver.rendezvous.point import Rendezvous

import slurm_resolver as sr
from slurm_resolver.cluster.tasks import Task
from slurm_resolver.parameter_server.protocol import MonitorAddress, monitor_address
from slurm_resolver.slurm.step import SlurmStep


def cluster_of(
    jobs: Sequence[str],
    rank: int,
    port: int,
    grace: Optional[int] = None,
    nodes: Optional[Sequence[str]] = None,
) -> sr.Cluster:
    """A step whose rank r plays `jobs[r]` ("ps 0") on node n8 + r, though all of it is here.

    Or on `nodes[r]`.
    """
    tasks = []
    for number, name in enumerate(jobs):
        job, index = name.split()
        node = f"n{8 + number}" if nodes is None else nodes[number]
        tasks.append(Task(number, node, 0, job, int(index), f"127.0.0.1:{number + 1}"))
    place = Rendezvous("127.0.0.1", port, "n8", "42.0.None", rank, rank == 0)
    step = SlurmStep(network_grace=grace)
    return sr.Cluster(tasks=tuple(tasks), task=tasks[rank], rendezvous=place, step=step)


def address_of(
    jobs: Sequence[str],
    rank: int,
    port: int,
    grace: Optional[int] = None,
    nodes: Optional[Sequence[str]] = None,
) -> MonitorAddress:
    found = monitor_address(cluster_of(jobs, rank, port, grace, nodes))
    assert found is not None
    return found
