"""The monitor of a parameter server job: a thread of ps 0 that all other tasks connect to.

It keeps the job's state, who has joined and who has left, and when `job_state` says how the job has
ended, it tells everybody.
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
from slurm_resolver.parameter_server.job_state import JobState
from slurm_resolver.parameter_server.protocol import (
    START_SECONDS,
    JobResult,
    MonitorAddress,
    print_line,
)
from slurm_resolver.rendezvous.probe import process_listening_at
from slurm_resolver.rendezvous.server import Event, Peer, Server
from slurm_resolver.rendezvous.wire import LIMITS, Limits, Message

_BIND_SECONDS = 10.0  # a meeting on this node may be about to close the port
_FAILING_SECONDS = 5.0  # for a process that has failed to be gone
_GRACE_SECONDS = 3.0  # for the result to arrive
_KILLED = "its process was killed or crashed"


class Monitor:
    """ps 0's own part in the job; as `Member` for the other tasks."""

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
        self._failures: Dict[int, str] = {}  # by rank, what it said of its end
        self._failing: Dict[Peer, float] = {}  # until when their processes have to be gone
        self._pid = os.getpid()
        exit_status.record_exit_status()
        atexit.register(self._leave)
        os.register_at_fork(after_in_child=self._forked)

    def serve(self, timeout: float = START_SECONDS) -> None:
        """Listens from now on.

        Raises:
            AddressError: where another process has the port.
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
        """Returns how the job has ended, when it has and all are told."""
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
                holder = process_listening_at(address.port)
                raise AddressError(
                    f"{address.name(address.rank)} cannot listen at port {address.port}: "
                    f"{os.strerror(error.errno or 0)}{f', by {holder}' if holder else ''}. Give "
                    "another port_base, or start with srun --resv-ports."
                ) from error

    def _run(self) -> None:
        while self._result is None:
            for event in self._server.events(self._pause()):
                self._handle(event)
            self._drop_failed()
            waited = time.monotonic() - self._started
            self._result = self._result or self._state.result(waited)
        last = {"status": self._result.status, "message": self._result.message}
        # Until all have heard it: this process ends next.
        self._server.finish(last, _GRACE_SECONDS, wait_for_peers=True)

    def _pause(self) -> Optional[float]:
        """Until something is to be done without a word from anybody."""
        now = time.monotonic()
        times = [*list(self._failing.values())[:1]]  # all last equally long: the first is due
        if self._started + self._timeout > now:
            times.append(self._started + self._timeout)
        return max(0.0, min(times) - now) if times else None

    def _handle(self, event: Event) -> None:
        peer, message = event.peer, event.message
        if message is None:
            self._on_end(peer, event.reason)
        elif peer.rank is None:
            self._welcome(peer, message)
        elif "serves" in message:
            self._state.only_serves(peer.rank)
        elif "ends" in message:
            self._failures[peer.rank] = str(message["ends"])
            if message["ends"]:  # it is over, though TensorFlow may keep the process for a while
                self._failing[peer] = time.monotonic() + _FAILING_SECONDS

    def _welcome(self, peer: Peer, message: Message) -> None:
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
            self._on_end(peer, "")

    def _on_end(self, peer: Peer, reason: str) -> None:
        assert peer.rank is not None
        self._failing.pop(peer, None)
        self._state.left(peer.rank, self._failures.pop(peer.rank, reason or _KILLED))

    def _leave(self) -> None:
        """This process ends: without a result that is before those that it serves."""
        thread = self._thread
        if os.getpid() != self._pid or thread is None or not thread.is_alive():
            return
        why = exit_status.failure_reason() or "it has ended before those that it serves"
        name = self._address.name(self._address.rank)
        self._result = self._result or JobResult(
            1, f"{name} is lost, and its variables with it: {why}"
        )
        self._server.wake()
        thread.join(2 * _GRACE_SECONDS)

    def _forked(self) -> None:
        """A child must not keep its parent's connections open, nor the port taken."""
        if self._thread is not None:
            self._server.close_in_child()
