"""Parameter server jobs of several nodes, all of whose addresses are on this machine."""

from __future__ import annotations

from typing import Sequence

import slurm_resolver as sr
from slurm_resolver.cluster.tasks import Task
from slurm_resolver.parameter_server.protocol import MonitorAddress, monitor_address
from slurm_resolver.rendezvous.point import Rendezvous


def cluster_of(jobs: Sequence[str], rank: int, port: int) -> sr.Cluster:
    """A step whose rank r plays `jobs[r]` ("ps 0") on node n8 + r, though all of it is here."""
    tasks = []
    for number, name in enumerate(jobs):
        job, index = name.split()
        tasks.append(Task(number, f"n{8 + number}", 0, job, int(index), f"127.0.0.1:{number + 1}"))
    place = Rendezvous("127.0.0.1", port, "n8", "42.0.None", rank, rank == 0)
    return sr.Cluster(tasks=tuple(tasks), task=tasks[rank], rendezvous=place)


def address_of(jobs: Sequence[str], rank: int, port: int) -> MonitorAddress:
    found = monitor_address(cluster_of(jobs, rank, port))
    assert found is not None
    return found
