"""`wait_until_ready` for the tasks of a one-node step, which are threads of one process."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from captured import Logged, Patch
from task_variables import ALONE, ONE_NODE

import slurm_resolver as sr
from slurm_resolver.cluster.addresses import Task
from slurm_resolver.local.environment import free_ports
from slurm_resolver.start import probe, ready
from slurm_resolver.start.ready import agreement_facts, find_disagreement, wait_until_ready
from slurm_resolver.timeouts import Timeouts

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


def test_tasks_with_another_version_of_this_package_are_named() -> None:
    """They tell other facts, or none."""
    cluster = cluster_of(0, free_ports(TASKS + 1))
    told = find_disagreement({0: {"facts": agreement_facts(cluster)}, 1: {}}, cluster)
    assert "disagree on the version of slurm_resolver" in told


def test_a_port_that_is_taken_is_named_with_the_task_in_every_task() -> None:
    ports = free_ports(TASKS + 1)

    def wait(rank: int) -> None:
        with pytest.raises(sr.RendezvousError) as caught:
            wait_until_ready(cluster_of(rank, ports), 20.0)
        assert f"cannot listen at port {ports[2]}" in str(caught.value)
        assert "worker 2 (rank 2 on localhost)" in str(caught.value)

    with (
        socket.create_server(
            (
                "",
                ports[2],
            )
        ),
        ThreadPoolExecutor(TASKS) as pool,
    ):
        list(pool.map(wait, range(TASKS)))


WORKERS = [f"worker {rank} (rank {rank} on localhost)" for rank in range(TASKS)]


@pytest.mark.parametrize("lasts", [0.5, 60.0])
def test_a_port_that_does_not_answer_is_named_with_its_task_in_every_task(
    monkeypatch: Patch, caplog: Logged, lasts: float
) -> None:
    """The port of rank 2 refuses connections, for `lasts` seconds."""
    ports = free_ports(TASKS + 1)
    ends = time.monotonic() + lasts
    call = probe.call

    def refuse(address: str) -> socket.socket:
        if address.endswith(f":{ports[2]}") and time.monotonic() < ends:
            raise ConnectionRefusedError("Connection refused")
        return call(address)

    monkeypatch.setattr(probe, "call", refuse)
    monkeypatch.setattr(ready, "_PAUSE", 0.1)
    monkeypatch.setattr(Timeouts, "first_notice", 0.0)

    def wait(rank: int) -> str:
        try:
            wait_until_ready(cluster_of(rank, ports), 2.0)
        except sr.RendezvousError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(TASKS) as pool:
        told = set(pool.map(wait, range(TASKS)))
    line = (
        f"{WORKERS[2]} does not answer {WORKERS[1]} at localhost:{ports[2]}: "
        "Connection refused; if a firewall"
    )
    assert f"has waited 0 s: {line}" in caplog.text
    if lasts < 1:
        assert told == {""}
    else:
        (error,) = told
        assert error.startswith(f"not ready: {line}")


def test_no_port_answers_any_more_when_tensorflow_of_the_first_task_may_start(
    monkeypatch: Patch,
) -> None:
    """TensorFlow 2.16 waits without end if this package accepts its connection."""
    ports = free_ports(TASKS + 1)
    usual = probe.listening

    @contextlib.contextmanager
    def closing_late(task: Task) -> Iterator[str]:
        with usual(task) as problem:
            yield problem
            time.sleep(0.5 if task.rank else 0.0)

    monkeypatch.setattr(ready, "listening", closing_late)

    def answering(rank: int) -> list[int]:
        wait_until_ready(cluster_of(rank, ports), 20.0)
        return [port for port in ports[:TASKS] if probe.answers(f"localhost:{port}")]

    with ThreadPoolExecutor(TASKS) as pool:
        assert [*pool.map(answering, range(TASKS))] == [[]] * TASKS


def test_the_tasks_of_a_large_step_together_ask_all_and_each_asks_few() -> None:
    tasks = [
        Task(
            rank,
            "n9",
            rank,
            "worker",
            rank,
            "n9:1",
        )
        for rank in range(5, 1005)
    ]
    asked = {task.rank: probe.tasks_to_ask(task.rank, tasks) for task in tasks}
    assert {task for few in asked.values() for task in few} == {*tasks}
    assert max(map(len, asked.values())) <= 12


def test_packets_that_do_not_arrive_after_the_answer_are_named(monkeypatch: Patch) -> None:
    monkeypatch.setattr(probe, "_CONNECT_SECONDS", 0.2)
    with socket.create_server(("localhost", 0)) as server, ThreadPoolExecutor(1) as pool:
        task = Task(
            rank=3,
            node="n9",
            local_rank=0,
            job="worker",
            index=3,
            address=f"localhost:{server.getsockname()[1]}",
        )
        problems = pool.submit(probe.find_unreached, [task])
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"3\n")
            assert "full packets do not arrive" in problems.result()[3]


def test_a_task_that_is_alone_is_ready_at_once() -> None:
    wait_until_ready(sr.Cluster(), 0.0)
    wait_until_ready(sr.resolve(environ=ALONE), 0.0)
