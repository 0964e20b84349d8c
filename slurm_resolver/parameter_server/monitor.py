"""The monitor of a parameter server job: a thread of ps 0 to which all other tasks connect.

It records which tasks have joined and left. When the job has ended by the rules of `job_state`, it
tells all tasks.
"""

from __future__ import annotations

import atexit
import errno
import os
import threading
import time
from typing import Dict, Optional

from slurm_resolver.errors import AddressError
from slurm_resolver.parameter_server import exit_status
from slurm_resolver.parameter_server.job_state import JobState, server_lost
from slurm_resolver.parameter_server.protocol import (
    START_SECONDS,
    JobResult,
    MonitorAddress,
    print_line,
)
from slurm_resolver.rendezvous.probe import process_listening_at
from slurm_resolver.rendezvous.server import Event, Peer, Server
from slurm_resolver.rendezvous.wire import LIMITS, Limits, Message

_BIND_SECONDS = 10.0  # to wait for the port, which a meeting on this node may still use
_FAILING_SECONDS = 5.0  # for a process to end after it has told that it has failed
_GRACE_SECONDS = 3.0  # for the result to arrive
_KILLED = "its process was killed or crashed"


class Monitor:
    """The monitor in ps 0, with the methods that `Member` has in the other tasks."""

    def __init__(
        self,
        address: MonitorAddress,
        limits: Limits = LIMITS,
        bind_seconds: float = _BIND_SECONDS,
    ) -> None:
        self._address = address
        self._limits = limits
        self._bind_seconds = bind_seconds
        self._thread: Optional[threading.Thread] = None
        self._result: Optional[JobResult] = None
        self._failures: Dict[int, str] = {}  # by rank: why it has failed, as it has told
        self._failing: Dict[Peer, float] = {}  # when they count as ended, the earliest first
        self._pid = os.getpid()
        exit_status.record_exit_status()
        atexit.register(self._send_end)
        os.register_at_fork(after_in_child=self._close_in_child)

    def serve(self, timeout: float = START_SECONDS) -> None:
        """Listens from now on. Tasks have `timeout` seconds to join.

        Raises:
            AddressError: where another process uses the port.
        """
        if self._thread is not None:
            return
        self._state = JobState(self._address, timeout)
        self._server = self._listen()
        self._timeout = timeout
        self._started = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, name="slurm_resolver monitor", daemon=True
        )
        self._thread.start()

    def wait(self) -> JobResult:
        """Waits until the job has ended and all tasks know, and returns how it has ended."""
        assert self._thread is not None
        self._thread.join()
        assert self._result is not None
        return self._result

    @property
    def decided(self) -> bool:
        """Whether the job has ended."""
        return self._result is not None

    def _listen(self) -> Server:
        address = self._address
        deadline = time.monotonic() + self._bind_seconds
        while True:
            try:
                return Server(address.port, len(address.tasks), self._limits)
            except OSError as error:
                if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                    time.sleep(0.1)
                    continue
                process = process_listening_at(address.port)
                raise AddressError(
                    f"{address.name(address.rank)} cannot listen at port {address.port}: "
                    f"{os.strerror(error.errno or 0)}{f', by {process}' if process else ''}. Give "
                    "another port_base, or start with srun --resv-ports."
                ) from error

    def _run(self) -> None:
        while self._result is None:
            for event in self._server.events(self._seconds_to_wait()):
                self._handle(event)
            self._drop_failed()
            waited = time.monotonic() - self._started
            self._result = self._result or self._state.result(waited)
        message = {"status": self._result.status, "message": self._result.message}
        # It waits until all have received it, as this process may end right after.
        self._server.finish(message, _GRACE_SECONDS, wait_for_peers=True)

    def _seconds_to_wait(self) -> Optional[float]:
        """Returns after how many seconds there is something to do without any message."""
        now = time.monotonic()
        times = list(self._failing.values())[:1]
        if self._started + self._timeout > now:
            times.append(self._started + self._timeout)
        return max(0.0, min(times) - now) if times else None

    def _handle(self, event: Event) -> None:
        peer, message = event.peer, event.message
        if message is None:
            self._handle_end(peer, event.reason)
        elif peer.rank is None:
            self._handle_join(peer, message)
        elif "serves" in message:
            self._state.only_serves(peer.rank)
        elif "ends" in message:
            self._failures[peer.rank] = str(message["ends"])
            if message["ends"]:  # it has failed, but TensorFlow may delay the end of its process
                self._failing[peer] = time.monotonic() + _FAILING_SECONDS

    def _handle_join(self, peer: Peer, message: Message) -> None:
        address, rank, identity = self._address, message.get("rank"), message.get("identity")
        of_this_step = isinstance(identity, list) and identity[:1] == [address.identity[0]]
        if not of_this_step or not self._state.may_join(rank):
            self._server.drop(peer)
            return
        assert isinstance(rank, int)
        if identity != list(address.identity):
            reason = "makes another cluster of this step: all tasks need the same arguments"
            print_line(f"{address.name(rank)} {reason}")
            self._server.send(peer, {"refused": f"{address.name(address.rank)} {reason}"})
            self._server.drop(peer)
            return
        self._server.accept(peer, rank)
        self._failures.pop(rank, None)
        self._state.joined(rank, bool(message.get("serves")))
        self._server.send(peer, {"welcome": True})

    def _drop_failed(self) -> None:
        now = time.monotonic()
        for peer, deadline in list(self._failing.items()):
            if deadline > now:
                break
            self._server.drop(peer)
            self._handle_end(peer, "")

    def _handle_end(self, peer: Peer, reason: str) -> None:
        assert peer.rank is not None
        self._failing.pop(peer, None)
        self._state.left(peer.rank, self._failures.pop(peer.rank, reason or _KILLED))

    def _send_end(self) -> None:
        """Tells all tasks at the end of this process: without a result the job has failed."""
        thread = self._thread
        if os.getpid() != self._pid or thread is None or not thread.is_alive():
            return
        name = self._address.name(self._address.rank)
        self._result = self._result or server_lost(name, exit_status.failure_reason())
        self._server.wake()
        thread.join(2 * _GRACE_SECONDS)

    def _close_in_child(self) -> None:
        """Closes a forked process's copies of the sockets, which would keep the port in use."""
        if self._thread is not None:
            self._server.close_in_child()
