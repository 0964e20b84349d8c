"""How a connection ended, as its socket tells afterwards."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Iterator, Tuple

import pytest

from slurm_resolver.parameter_server.observed_socket import (
    ObservedSocket,
    ObservingListener,
    connect,
    has_arrived,
)


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def send_for_ever(sock: socket.socket, data: bytes) -> None:
    while True:
        sock.send(data)


@pytest.fixture
def pair() -> Iterator[Tuple[ObservedSocket, ObservedSocket]]:
    with ObservingListener(fileno=socket.create_server(("", 0)).detach()) as listener:
        near = connect(("127.0.0.1", listener.getsockname()[1]), 20.0)
        far = listener.accept()[0]
    yield near, far
    near.close()
    far.close()


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(("how", "lost"), [("close", False), ("reset", True)])
def test_the_end_of_a_connection(
    pair: Tuple[ObservedSocket, ObservedSocket], at: int, how: str, lost: bool
) -> None:
    one, other = pair[at], pair[1 - at]
    one.settimeout(20.0)
    other.sendall(b"x")
    assert one.recv(1) == b"x"
    one.settimeout(0.01)
    with pytest.raises(socket.timeout):  # which is no end
        one.recv(1)
    assert not one.lost
    one.settimeout(20.0)
    (reset if how == "reset" else socket.socket.close)(other)
    with contextlib.suppress(ConnectionResetError):
        assert one.recv(1) == b""
    assert (one.lost, one.silent) == (lost, False)


def test_a_reset_whose_error_a_send_has_got(pair: Tuple[ObservedSocket, ObservedSocket]) -> None:
    near, far = pair
    reset(far)
    with pytest.raises(OSError, match=r"reset|pipe"):
        send_for_ever(near, b"x")
    assert near.recv(1) == b""
    assert near.lost
    assert not has_arrived(near)


def test_what_was_sent_has_arrived(pair: Tuple[ObservedSocket, ObservedSocket]) -> None:
    near, far = pair
    near.sendall(b"x")
    assert far.recv(1) == b"x"
    while not has_arrived(near):  # its acknowledgement may come later
        pass
    near.setblocking(False)
    with pytest.raises(BlockingIOError):  # more than the other end's kernel takes
        send_for_ever(near, bytes(2**20))
    assert not has_arrived(near)
    near.close()
    assert not has_arrived(near)
