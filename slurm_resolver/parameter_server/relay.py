"""Passes what the tasks of a node and the monitor send each other over one connection.

It is a thread of one of these tasks: of the first that finds no relay on its node. Where that
process ends, or loses its connection, the others come again, and one of them relays from then on.
See `channels` for the messages to the monitor, and `relayed_socket` for those to the tasks.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import selectors
import socket
import threading
import time
from typing import Dict, List, Optional

from slurm_resolver.parameter_server.observed_socket import ObservedSocket
from slurm_resolver.parameter_server.relay_connector import OpenConnection, RelayConnector
from slurm_resolver.parameter_server.relayed_socket import (
    ALIVE,
    CLOSED,
    DATA,
    LOST,
    PACKET_BYTES,
    SILENT,
    UP,
)
from slurm_resolver.parameter_server.relayed_task import RelayedTask
from slurm_resolver.rendezvous.sockets import (
    allow_open_files,
    close_copy,
    is_of_this_user,
    listen_at_name,
)
from slurm_resolver.rendezvous.wire import Connection, Message, WireError, encode

_RECEIVE_BYTES = 64 * 1024
_PAUSE = 0.01
_ALONE_SECONDS = 10.0  # without a connection, and without a task that waits for one
_MOST_UNSENT = 1024 * 1024  # bytes: tasks and monitor send each other far less


class Relay:
    """The relay of this node, in a thread of this process."""

    def __init__(
        self, listener: socket.socket, connect: OpenConnection, interval: float, tasks: int
    ) -> None:
        self._listener: Optional[socket.socket] = listener
        self._interval = interval
        self._tasks: Dict[int, RelayedTask] = {}  # by number
        self._numbers = itertools.count(1)
        self._up: Optional[Connection] = None  # to the monitor
        self._unsent = bytearray()
        self._over = False
        self._last_word = b""  # what the tasks are told at the end
        self._started = time.monotonic()
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        allow_open_files(tasks)
        listener.setblocking(False)
        for sock, handle in ((listener, self._accept), (self._woken, self._take_connection)):
            self._selector.register(sock, selectors.EVENT_READ, handle)
        self._connector = RelayConnector(connect, self._wake_up)
        threading.Thread(target=self._run, name="slurm_resolver relay", daemon=True).start()

    @classmethod
    def start(
        cls, name: str, connect: OpenConnection, interval: float, tasks: int
    ) -> Optional[Relay]:
        """Relays from now on; returns None where another process does.

        Args:
            name: at which it listens, in Linux's abstract namespace.
            connect: opens the connection to the monitor; it may block, and raise an error.
            interval: how often tasks are told that it is there, in seconds.
            tasks: how many tasks may come.
        """
        try:
            listener = listen_at_name(name, tasks, socket.SOCK_SEQPACKET)
        except OSError:
            return None
        try:
            return cls(listener, connect, interval, tasks)
        except (OSError, RuntimeError):  # no file or no thread is left: then each goes by itself
            listener.close()
            return None

    def await_others(self, seconds: float) -> None:
        """Waits until the other tasks have ended their connections, for that long at most."""
        until = time.monotonic() + seconds
        while not self._over and time.monotonic() < until:
            if all(task.is_own for task in list(self._tasks.values())):
                break
            time.sleep(_PAUSE)

    def close_in_child(self) -> None:
        """Closes a forked process's copies of all sockets; the parent's go on."""
        sockets: List[socket.socket] = [task.socket for task in list(self._tasks.values())]
        if self._up is not None:
            sockets.append(self._up.socket)
        if self._listener is not None:
            sockets.append(self._listener)
        for sock in [*sockets, self._wake, self._woken]:
            close_copy(sock)

    def _run(self) -> None:
        beat = time.monotonic()
        try:
            while not self._over:
                for key, ready in self._selector.select(max(0.0, beat - time.monotonic())):
                    key.data(ready)
                if time.monotonic() >= beat:
                    beat = time.monotonic() + self._interval
                    self._tell_alive()
        finally:
            self._end()

    def _wake_up(self) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._wake.send(b"w")

    def _take_connection(self, ready: int) -> None:
        """Takes the connection to the monitor, and opens a channel for each task."""
        self._woken.recv(_RECEIVE_BYTES)
        self._up = self._connector.take()
        if self._up is None:
            self._last_word, self._over = CLOSED, True
            return
        self._up.socket.setblocking(False)
        self._selector.register(self._up.socket, selectors.EVENT_READ, self._handle_monitor)
        for task in list(self._tasks.values()):
            self._open(task)

    def _accept(self, ready: int) -> None:
        assert self._listener is not None
        try:
            sock = self._listener.accept()[0]
        except BlockingIOError:
            return
        except OSError:  # no file is left: whoever comes from now on relays by itself
            self._stop_listening()
            return
        if not is_of_this_user(sock):
            sock.close()
            return
        sock.setblocking(False)
        task = RelayedTask(next(self._numbers), sock)
        self._tasks[task.number] = task
        self._selector.register(sock, selectors.EVENT_READ, lambda ready: self._handle(task, ready))
        self._pass_on(task, ALIVE)
        if self._up is not None:
            self._open(task)

    def _open(self, task: RelayedTask) -> None:
        assert self._up is not None
        self._tell({"open": task.number, "own": task.is_own})
        with contextlib.suppress(OSError):  # it has ended already
            peer = self._up.socket.getpeername()
            # An address that is one only with its interface does not tell the way.
            shown = [peer[0], peer[1]] if len(peer) == 2 or not peer[3] else None
            self._pass_on(task, UP + json.dumps(shown).encode())

    def _handle(self, task: RelayedTask, ready: int) -> None:
        """Passes on what a task sends, and that it has ended."""
        if task.number not in self._tasks:  # it has ended since
            return
        if ready & selectors.EVENT_WRITE:
            self._flush(task)
        if not ready & selectors.EVENT_READ:
            return
        try:
            packet = task.socket.recv(PACKET_BYTES + 1)
        except (BlockingIOError, ConnectionResetError):
            return  # what a task sent that ended with data unread comes after the error
        except OSError:
            packet = b""
        if packet[:1] == DATA and self._up is not None and len(self._unsent) < _MOST_UNSENT:
            text = base64.b64encode(packet[1:]).decode()
            self._tell({"channel": task.number, "bytes": text})
        else:
            self._drop(task)
            self._tell({"lost" if packet == LOST else "close": task.number})

    def _handle_monitor(self, ready: int) -> None:
        assert self._up is not None
        sock = _observed(self._up)
        if ready & selectors.EVENT_WRITE:
            self._send()
        if not ready & selectors.EVENT_READ:
            return
        try:
            received = sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._last_word = SILENT if sock.silent else b"" if sock.lost else CLOSED
            self._over = True
            return
        try:
            messages = self._up.decoder.feed(received)
        except WireError:  # somebody on the way has changed it
            self._over = True
            return
        for message in messages:
            self._handle_message(message)

    def _handle_message(self, message: Message) -> None:
        number = message.get("channel", message.get("close"))
        task = self._tasks.get(number) if type(number) is int else None
        if task is None:
            return
        if "close" in message:
            self._pass_on(task, CLOSED)
            self._drop(task)
        else:
            data = base64.b64decode(message.get("bytes", ""))
            for start in range(0, len(data), PACKET_BYTES):
                self._pass_on(task, DATA + data[start : start + PACKET_BYTES])

    def _tell(self, message: Message) -> None:
        if self._up is not None:
            self._unsent += encode(message, self._up.seal)
            self._send()

    def _send(self) -> None:
        assert self._up is not None
        try:
            while self._unsent:
                del self._unsent[: self._up.socket.send(self._unsent[:_RECEIVE_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # reading from it will tell that it has ended
        self._await(self._up.socket, bool(self._unsent))

    def _pass_on(self, task: RelayedTask, packet: bytes) -> None:
        task.unsent.append(packet)
        self._flush(task)

    def _flush(self, task: RelayedTask) -> None:
        task.flush()
        self._await(task.socket, bool(task.unsent))

    def _await(self, sock: socket.socket, can_write: bool) -> None:
        """Waits for a socket, also until one can write to it."""
        key = self._selector.get_key(sock)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if can_write else 0)
        if key.events != events:
            self._selector.modify(sock, events, key.data)

    def _drop(self, task: RelayedTask) -> None:
        del self._tasks[task.number]
        self._selector.unregister(task.socket)
        task.socket.close()

    def _tell_alive(self) -> None:
        for task in list(self._tasks.values()):
            if not task.has_unread:  # what is there already tells it as well
                self._pass_on(task, ALIVE)
        is_late = time.monotonic() > self._started + _ALONE_SECONDS
        if self._up is None and not self._tasks and is_late:
            self._over = True

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _end(self) -> None:
        self._over = True
        self._stop_listening()
        if self._up is not None:
            # This process goes on, and so does its own channel: only the kernel tells its end.
            _observed(self._up).abandon()
        for task in list(self._tasks.values()):
            if self._last_word:
                self._pass_on(task, self._last_word)
            self._drop(task)
        self._connector.stop()
        for sock in (self._wake, self._woken):
            sock.close()
        self._selector.close()


def _observed(connection: Connection) -> ObservedSocket:
    assert isinstance(connection.socket, ObservedSocket)
    return connection.socket
