"""ps 0's side of the lifelines: one thread that holds a connection to every other task.

It keeps the roll of who is there, and when `roll.py` says how the job has ended, it tells all.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import resource
import selectors
import socket
import threading
import time
from typing import Any, Dict, Optional, Set

from slurm_resolver.errors import AddressError
from slurm_resolver.parameter_server import exit_status as ending
from slurm_resolver.parameter_server.job_state import Roll
from slurm_resolver.parameter_server.member import (
    LONGEST_LINE,
    START_SECONDS,
    Star,
    Verdict,
    keep_alive,
    line,
    read_line,
    say,
)
from slurm_resolver.rendezvous.probe import holder_of

_BIND_SECONDS = 10.0  # a meeting on this node may be about to close the port
_HANDSHAKE_SECONDS = 5.0
_FAILING_SECONDS = 5.0  # for a process that has failed to be gone
_GRACE_SECONDS = 3.0  # for the verdict to arrive
_STRANGERS = 256
_KILLED = "its process was killed or crashed"


class _Connection:
    """One task's connection, or a stranger's as long as `rank` is None."""

    def __init__(self, link: socket.socket) -> None:
        self.socket = link
        self.text = b""
        self.rank: Optional[int] = None
        self.failure: Optional[str] = None  # what it said of its end

    def send(self, **message: Any) -> None:
        with contextlib.suppress(OSError):  # its end is noticed elsewhere
            self.socket.send(line(**message))


class Hub:
    """ps 0's own lifeline; as `Member` for the other tasks."""

    def __init__(self, star: Star) -> None:
        self._star = star
        self._thread: Optional[threading.Thread] = None
        self._verdict: Optional[Verdict] = None
        self._connections: Set[_Connection] = set()
        self._deadlines: Dict[_Connection, float] = {}  # of strangers and of those that fail
        self._selector = selectors.DefaultSelector()
        self._pid = os.getpid()
        ending.watch()
        atexit.register(self._leave)
        os.register_at_fork(after_in_child=self._forked)

    def serve(self, timeout: float = START_SECONDS) -> None:
        """Listens from now on.

        Raises:
            AddressError: where another process has the port.
        """
        if self._thread is not None:
            return
        self._roll = Roll(self._star, timeout)
        self._listener = self._listen()
        self._accepts_from: Optional[float] = None
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._wake, woken = socket.socketpair()
        self._selector.register(woken, selectors.EVENT_READ, None)
        self._woken = woken
        self._timeout = timeout
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="slurm_resolver hub", daemon=True)
        self._thread.start()

    def wait(self) -> Verdict:
        """Returns how the job has ended, when it has and all are told."""
        assert self._thread is not None
        self._thread.join()
        assert self._verdict is not None
        return self._verdict

    @property
    def decided(self) -> bool:
        """Whether the job has ended."""
        return self._verdict is not None

    def _listen(self) -> socket.socket:
        star = self._star
        _allow_files(len(star.tasks) + _STRANGERS)
        deadline = time.monotonic() + _BIND_SECONDS
        backlog = min(len(star.tasks) + _STRANGERS, 4096)
        while True:
            try:
                if socket.has_dualstack_ipv6():
                    listener = socket.create_server(
                        ("", star.port), family=socket.AF_INET6, backlog=backlog,
                        dualstack_ipv6=True,
                    )  # fmt: skip
                else:
                    listener = socket.create_server(("", star.port), backlog=backlog)
                listener.setblocking(False)
                return listener
            except OSError as error:
                if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                    time.sleep(0.1)
                    continue
                holder = holder_of(star.port)
                raise AddressError(
                    f"{star.name(star.rank)} cannot listen at port {star.port}: "
                    f"{os.strerror(error.errno or 0)}{f', by {holder}' if holder else ''}. Give "
                    "another port_base, or start with srun --resv-ports."
                ) from error

    def _run(self) -> None:
        while self._verdict is None:
            for key, _ in self._selector.select(self._pause()):
                if isinstance(key.data, _Connection):
                    self._read(key.data)
                elif key.fileobj is self._listener:
                    self._accept()
            self._sweep()
            waited = time.monotonic() - self._started
            self._verdict = self._verdict or self._roll.verdict(waited)
        self._tell(self._verdict)

    def _pause(self) -> Optional[float]:
        """Until something is to be done without anybody saying a word."""
        now = time.monotonic()
        times = [*list(self._deadlines.values())[:1]]  # all last equally long: the first is due
        if self._accepts_from is not None:
            times.append(self._accepts_from)
        start = self._started + self._timeout
        if start > now:
            times.append(start)
        return max(0.0, min(times) - now) if times else None

    def _sweep(self) -> None:
        now = time.monotonic()
        for connection, deadline in list(self._deadlines.items()):
            if deadline > now:
                break
            self._end(connection, _KILLED)
        if self._accepts_from is not None and self._accepts_from <= now:
            self._accepts_from = None
            self._selector.register(self._listener, selectors.EVENT_READ, None)

    def _accept(self) -> None:
        try:
            while True:
                link, _ = self._listener.accept()
                link.setblocking(False)
                keep_alive(link)
                connection = _Connection(link)
                self._connections.add(connection)
                self._deadlines[connection] = time.monotonic() + _HANDSHAKE_SECONDS
                self._selector.register(link, selectors.EVENT_READ, connection)
                if len(self._connections) > len(self._star.tasks) + _STRANGERS:
                    self._end(connection, "")
        except BlockingIOError:
            pass
        except OSError:  # no more file descriptors, most likely: look again later
            self._selector.unregister(self._listener)
            self._accepts_from = time.monotonic() + 1.0

    def _read(self, connection: _Connection) -> None:
        try:
            piece = connection.socket.recv(LONGEST_LINE)
        except BlockingIOError:
            return
        except ConnectionResetError:
            piece = b""
        except OSError as error:
            self._end(connection, f"its node does not answer any more ({error.strerror})")
            return
        connection.text += piece
        *lines, connection.text = connection.text.split(b"\n")
        try:
            for text in lines:
                self._hear(connection, read_line(text))
            if not piece or len(connection.text) > LONGEST_LINE:
                self._end(connection, _KILLED)
        except (ValueError, KeyError, TypeError):  # a stranger
            self._end(connection, _KILLED)

    def _hear(self, connection: _Connection, message: Dict[str, Any]) -> None:
        rank = connection.rank
        if rank is None:
            self._welcome(connection, message)
        elif "serves" in message:
            self._roll.serves(rank)
        elif "ends" in message:
            connection.failure = str(message["ends"])
            if connection.failure:  # it is over, though TensorFlow may keep the process for a while
                self._deadlines[connection] = time.monotonic() + _FAILING_SECONDS

    def _welcome(self, connection: _Connection, message: Dict[str, Any]) -> None:
        rank = message["rank"]
        step, cluster = message["identity"]
        if message["lifeline"] != 1 or step != self._star.identity[0]:
            raise ValueError("of another job or step")
        if not self._roll.may_come(rank):
            raise ValueError("no task, or here already")
        if cluster != self._star.identity[1]:
            reason = "makes another cluster of this step: all tasks need the same arguments"
            say(f"{self._star.name(rank)} {reason}")
            connection.send(refused=f"{self._star.name(self._star.rank)} {reason}")
            raise ValueError(reason)
        connection.rank = rank
        del self._deadlines[connection]
        self._roll.comes(rank, bool(message["serves"]))
        connection.send(welcome=True)

    def _end(self, connection: _Connection, failure: str) -> None:
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self._deadlines.pop(connection, None)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection.rank is not None:
            said = connection.failure
            self._roll.goes(connection.rank, failure if said is None else said)

    def _tell(self, verdict: Verdict) -> None:
        """Tells everybody, and waits until they have heard it: this process ends next."""
        if self._accepts_from is None:
            self._selector.unregister(self._listener)
        self._selector.unregister(self._woken)
        self._listener.close()
        for connection in self._connections:
            connection.send(status=verdict.status, message=verdict.message)
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._connections and time.monotonic() < deadline:
            for key, _ in self._selector.select(max(0.0, deadline - time.monotonic())):
                if isinstance(key.data, _Connection):
                    ended = True
                    with contextlib.suppress(OSError):
                        ended = not key.data.socket.recv(LONGEST_LINE)
                    if ended:
                        self._selector.unregister(key.data.socket)
                        self._connections.discard(key.data)
                        key.data.socket.close()

    def _leave(self) -> None:
        """This process ends: without a verdict that is before those that it serves."""
        thread = self._thread
        if os.getpid() != self._pid or thread is None or not thread.is_alive():
            return
        why = ending.failure() or "it has ended before those that it serves"
        name = self._star.name(self._star.rank)
        self._verdict = self._verdict or Verdict(
            1, f"{name} is lost, and its variables with it: {why}"
        )
        self._wake.close()
        thread.join(2 * _GRACE_SECONDS)

    def _forked(self) -> None:
        """A child must not keep its parent's connections open, nor the port taken."""
        links = [connection.socket for connection in list(self._connections)]
        for link in [*links, self._listener] if self._thread is not None else []:
            with contextlib.suppress(OSError):
                os.close(link.detach())


def _allow_files(count: int) -> None:
    """A file descriptor for each connection: the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 1024 if hard == resource.RLIM_INFINITY else min(count + 1024, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
