"""The sockets at which a server listens; it waits where no file descriptor is left."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from typing import Callable, List, Optional

_AGAIN_SECONDS = 0.2
_ACCEPT_AT_ONCE = 64


class Listeners:
    """Accepts what comes to listening sockets.

    Attributes:
        sockets: they are closed by `close`.
        again_at: while it does not listen, as no file descriptor was left: when it does again.
        lacks_files: whether connections had to wait for a file descriptor.
    """

    def __init__(
        self, selector: selectors.BaseSelector, greet: Callable[[socket.socket, str], None]
    ) -> None:
        """Takes what waits for the sockets, and what to call with a connection and its source."""
        self._selector = selector
        self._greet = greet
        self.sockets: List[socket.socket] = []
        self.again_at: Optional[float] = None
        self.lacks_files = False

    def add(self, listener: socket.socket) -> None:
        """Accepts what comes to one more listening socket."""
        listener.setblocking(False)
        self.sockets.append(listener)
        if self.again_at is None:
            self._selector.register(listener, selectors.EVENT_READ)

    def accept(self, listener: socket.socket) -> None:
        """Accepts what has come to one of the sockets."""
        try:
            for _ in range(_ACCEPT_AT_ONCE):  # then those that have been accepted have their turn
                sock, address = listener.accept()
                self._greet(sock, str(address[0]) if address else "")
        except BlockingIOError:
            pass
        except OSError as error:  # most likely no file descriptor is left: try again later
            self.lacks_files = self.lacks_files or error.errno in (errno.EMFILE, errno.ENFILE)
            if self.again_at is None:  # else another listener has found it just now
                for each in self.sockets:
                    self._selector.unregister(each)
            self.again_at = time.monotonic() + _AGAIN_SECONDS

    def look_at_the_clock(self, now: float) -> None:
        """Listens again when it is time."""
        if self.again_at is not None and self.again_at <= now:
            self.again_at = None
            for listener in self.sockets:
                self._selector.register(listener, selectors.EVENT_READ)

    def close(self) -> None:
        """Stops listening."""
        for listener in self.sockets:
            if self.again_at is None:
                self._selector.unregister(listener)
            listener.close()
        self.sockets = []
        self.again_at = None
