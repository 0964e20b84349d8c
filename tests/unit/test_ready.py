"""`wait_until_ready`: the tasks of a step of one node, as threads of one process."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import List, Optional

import pytest
from free_ports import free_ports

import slurm_resolver as sr
from slurm_resolver.preflight.ready import wait_until_ready

TASKS = 3


@pytest.fixture
def clusters() -> List[sr.Cluster]:
    """The cluster as each of three tasks on this machine resolves it."""
    port = free_ports(TASKS + 1)
    return [cluster_of(rank, port) for rank in range(TASKS)]


def cluster_of(rank: int, port: int) -> sr.Cluster:
    variables = {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
        "SLURMD_NODENAME": "localhost",
        "SLURM_JOB_ID": "42",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(TASKS),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": str(TASKS),
    }
    return sr.resolve(port_base=port, environ=variables)


def errors(clusters: List[sr.Cluster]) -> List[Optional[str]]:
    """What each task raises; None where it is ready."""

    def wait(cluster: sr.Cluster) -> Optional[str]:
        try:
            wait_until_ready(cluster, 20.0)
        except sr.RendezvousError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(len(clusters)) as pool:
        return list(pool.map(wait, clusters))


def port_of(cluster: sr.Cluster, rank: int) -> int:
    return int(cluster.tasks[rank].address.rpartition(":")[2])


def test_tasks_that_agree_are_ready(clusters: List[sr.Cluster]) -> None:
    assert errors(clusters) == [None] * TASKS


def test_a_port_that_is_taken_is_named_with_the_task(clusters: List[sr.Cluster]) -> None:
    with socket.create_server(("", port_of(clusters[0], 2))):
        for error in errors(clusters):
            assert error is not None
            assert f"cannot listen at port {port_of(clusters[0], 2)}" in error
            assert "worker 2 (rank 2 on localhost)" in error


def test_a_task_that_is_alone_is_ready_at_once() -> None:
    wait_until_ready(sr.Cluster(), 0.0)
    one = {"SLURM_STEP_NODELIST": "n1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_PROCID": "0"}
    wait_until_ready(sr.resolve(environ=one), 0.0)
