"""Who listens at a port, and what a task that asks there finds out."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Dict, Set

import pytest

from slurm_resolver.rendezvous.probe import (
    Listener,
    ask_rank,
    measure_bandwidth,
    process_listening_at,
    ranks_to_ask,
    unresolved_hosts,
)


def test_who_listens_is_told_to_who_asks(port: int) -> None:
    listener = Listener(7, port)
    try:
        assert listener.problem is None
        peer = ask_rank(f"127.0.0.1:{port}", 7)
        assert (peer.problem, peer.seconds > 0, abs(peer.clock_ahead) < 1) == (None, True, True)
        assert ask_rank(f"127.0.0.1:{port}", 6).problem == "rank 7 answers there"
        rate = measure_bandwidth(f"127.0.0.1:{port}", 4 * 2**20)
        assert rate is not None
        assert rate > 0
    finally:
        listener.close()
    assert "refused" in (ask_rank(f"127.0.0.1:{port}", 7).problem or "")
    assert measure_bandwidth(f"127.0.0.1:{port}", 1) is None


def test_a_taken_port_and_who_holds_it(port: int) -> None:
    name = Path("/proc/self/comm").read_text().strip()
    with socket.create_server(("", port)):
        assert process_listening_at(port) == f"process {os.getpid()} ({name})"
        problem = Listener(0, port).problem
    assert problem == f"port {port}: Address already in use, by process {os.getpid()} ({name})"
    assert process_listening_at(port) is None


@pytest.mark.parametrize("sent", [b"", b"x", b"t", b"t" + b"\xff" * 8, b"GET / HTTP/1.1"])
def test_strangers(port: int, sent: bytes) -> None:
    listener = Listener(0, port)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as stranger:
            stranger.sendall(sent)
            with contextlib.suppress(OSError):  # it may have been shown the door already
                stranger.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):  # hung up on, as it should be
                assert len(stranger.recv(100)) in (0, 16)
        assert ask_rank(f"127.0.0.1:{port}", 0).problem is None
    finally:
        listener.close()


def test_names() -> None:
    assert unresolved_hosts(["localhost", "127.0.0.1"]) == {}
    assert list(unresolved_hosts(["localhost", "no such name"])) == ["no such name"]


@pytest.mark.parametrize("tasks", [1, 2, 64, 65, 1000])
def test_a_sample_covers_the_step(tasks: int) -> None:
    asked: Dict[int, int] = dict.fromkeys(range(tasks), 0)
    for rank in range(tasks):
        peers = ranks_to_ask(rank, tasks)
        assert rank not in peers
        assert len(set(peers)) == len(peers) <= 63
        for peer in peers:
            asked[peer] += 1
    assert len(set(asked.values())) == 1  # every task is asked by as many
    reached: Set[int] = {0}
    frontier = {0}
    while frontier:
        frontier = {p for rank in frontier for p in ranks_to_ask(rank, tasks)} - reached
        reached |= frontier
    assert reached == set(range(tasks))
