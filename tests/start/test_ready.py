"""`wait_until_ready` for the tasks of a one-node step, which are threads of one process."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from task_variables import ALONE, ONE_NODE

import slurm_resolver as sr
from slurm_resolver.local.environment import free_ports
from slurm_resolver.start.ready import wait_until_ready

TASKS = 3


def cluster_of(rank: int, ports: list[int]) -> sr.Cluster:
    """Returns the cluster as one of three tasks on this machine resolves it."""
    return sr.resolve(
        environ={
            **ONE_NODE,
            "SLURM_PROCID": str(rank),
            "SLURMD_NODENAME": "localhost",
            "SLURM_STEP_NUM_TASKS": str(TASKS),
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_STEP_TASKS_PER_NODE": str(TASKS),
            "SLURM_STEP_RESV_PORTS": ",".join(map(str, ports)),
        },
    )


def test_a_port_that_is_taken_is_named_with_the_task_in_every_task() -> None:
    ports = free_ports(TASKS + 1)

    def wait(rank: int) -> None:
        with pytest.raises(sr.RendezvousError) as caught:
            wait_until_ready(cluster_of(rank, ports), 20.0)
        assert f"cannot listen at port {ports[2]}" in str(caught.value)
        assert "worker 2 (rank 2 on localhost)" in str(caught.value)

    with socket.create_server(("", ports[2])), ThreadPoolExecutor(TASKS) as pool:
        list(pool.map(wait, range(TASKS)))


def test_a_task_that_is_alone_is_ready_at_once() -> None:
    wait_until_ready(sr.Cluster(), 0.0)
    wait_until_ready(sr.resolve(environ=ALONE), 0.0)
