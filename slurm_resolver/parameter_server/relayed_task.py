"""A task of this node that has come to the relay."""

from __future__ import annotations

import collections
import fcntl
import socket
import struct
import termios
from typing import Deque

from slurm_resolver.rendezvous.sockets import is_of_this_process


class RelayedTask:
    """The relay's end of the connection to a task.

    Attributes:
        number: of its channel.
        is_own: whether it is this process itself.
        unsent: the packets that it has still to be sent.
    """

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.socket = sock
        self.is_own = is_of_this_process(sock)
        self.unsent: Deque[bytes] = collections.deque()

    def flush(self) -> None:
        """Sends what the kernel takes."""
        try:
            while self.unsent:
                self.socket.send(self.unsent[0])
                self.unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self.unsent.clear()  # reading from it will tell that it has ended

    @property
    def has_unread(self) -> bool:
        """Whether the task has not yet read all that was sent to it."""
        try:
            unread = fcntl.ioctl(self.socket.fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
        except OSError:
            return False
        return any(unread)
