"""A task's connection to the relay of its node, which passes on what it and the monitor send.

The relay listens at a name that the kernel knows. The two send each other packets, whose first byte
says what they are. A relay that is stopped, or in which its thread has no turn, is known by its
silence: it sends a packet every now and then.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from typing import Callable, Optional, Tuple

from slurm_resolver.parameter_server.observed_socket import ObservedSocket
from slurm_resolver.rendezvous.sockets import connect_to_name

ALIVE = b"a"  # the relay is there
UP = b"u"  # it has its connection to the monitor, at this host and port: JSON, or null
DATA = b"d"  # what the monitor sends, and what it is sent
LOST = b"l"  # the task goes another way: that it closes this connection is not its end
CLOSED = b"c"  # the monitor has closed the connection
SILENT = b"s"  # the monitor's node has not answered for half the grace

PACKET_BYTES = 32 * 1024  # the most that is sent in a packet
_FIND_SECONDS = 3.0  # the most for the relay to say that it is there
_UP_SECONDS = 5.0  # and to have its connection to the monitor
_ASK_SECONDS = 0.1
_PARTS = 4  # in which a silence is measured: this process may have been stopped during one

Address = Tuple[str, int]


def connect_to_relay(name: str, silence: float, may_wait: Callable[[], bool]) -> RelayedSocket:
    """Connects to the relay that listens at a name, and waits until it has the monitor.

    Args:
        name: in Linux's abstract namespace.
        silence: after how many seconds without a packet the relay counts as stopped.
        may_wait: asked every now and then.

    Raises:
        ConnectionError: where none listens, or it ends.
        OSError: where it does not answer, or has no connection to the monitor soon.
    """
    find_seconds = min(_FIND_SECONDS, silence)
    sock = connect_to_name(name, find_seconds, socket.SOCK_SEQPACKET)
    relayed = RelayedSocket(silence, fileno=sock.detach())
    try:
        relayed.await_monitor(find_seconds, min(_UP_SECONDS, silence), may_wait)
    except BaseException:
        relayed.close()
        raise
    return relayed


class RelayedSocket(ObservedSocket):
    """A connection to the monitor through the relay of this node.

    `lost` is also true where the relay has ended, or nothing came from it for too long.

    Attributes:
        stalled: whether the connection counts as lost because the relay said nothing.
        monitor: the host and port of the monitor, as the relay has found it; None where these do
            not tell the way.
    """

    stalled = False
    monitor: Optional[Address] = None
    _patience: Optional[float] = None
    _ended = False

    def __init__(self, silence: float, fileno: int) -> None:
        """Takes after how many seconds without a packet the relay counts as stopped."""
        super().__init__(fileno=fileno)
        super().settimeout(None)  # `recv` waits by itself
        self._silence = silence

    def settimeout(self, seconds: Optional[float]) -> None:
        """Sets for how long `recv` waits."""
        self._patience = seconds

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Receives what the monitor has sent; at most `PACKET_BYTES`, whatever the size."""
        until = None if self._patience is None else time.monotonic() + self._patience
        while not self._ended:
            packet = self._packet(until)
            if packet is None:
                if until is not None and time.monotonic() >= until:
                    raise socket.timeout("timed out")
                self.stalled = True
                packet = b""
            kind = packet[:1]
            if kind == DATA:
                return packet[1:]
            if kind != ALIVE:
                self._ended = True
                self.lost = kind != CLOSED
                self.silent = kind == SILENT
        return b""

    def sendall(self, data: bytes, flags: int = 0, /) -> None:  # type: ignore[override]
        """Sends as any socket does, in packets."""
        for start in range(0, len(data), PACKET_BYTES):
            socket.socket.sendall(self, DATA + data[start : start + PACKET_BYTES], flags)

    def abandon(self) -> None:
        """Closes it, and lets the monitor know that this process goes on."""
        with contextlib.suppress(OSError):
            self.send(LOST, socket.MSG_DONTWAIT)
        self.close()

    def _packet(self, until: Optional[float]) -> Optional[bytes]:
        """Returns the next packet; b"" at the end, None where none comes in time."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        for _ in range(_PARTS):
            seconds = self._silence / _PARTS
            if until is not None:
                seconds = min(seconds, max(0.0, until - time.monotonic()))
            if poll.poll(1000 * seconds):
                break
        else:
            return None
        while True:
            try:
                return socket.socket.recv(self, PACKET_BYTES + 1)
            except ConnectionResetError:
                pass  # it ended with data unread; what it sent before comes after that

    def await_monitor(
        self, find_seconds: float, up_seconds: float, may_wait: Callable[[], bool]
    ) -> None:
        """Waits until the relay has the monitor; raises OSError where it does not say so in time.

        Args:
            find_seconds: for its first packet.
            up_seconds: for its connection to the monitor.
            may_wait: asked every now and then.
        """
        started = time.monotonic()
        until, packet = started + find_seconds, b""
        while packet[:1] != UP:
            if time.monotonic() >= until or not may_wait():
                raise TimeoutError("the relay gives no answer, or has no connection")
            found = self._packet(min(until, time.monotonic() + _ASK_SECONDS))
            if found is None:
                continue
            packet = found
            if not packet:
                raise ConnectionError("the relay has ended")
            if packet[:1] not in (ALIVE, UP):
                raise OSError("the relay does without a connection")
            until = started + up_seconds
        address = json.loads(packet[1:])
        self.monitor = None if address is None else (address[0], address[1])
