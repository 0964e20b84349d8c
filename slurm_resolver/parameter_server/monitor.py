"""The monitor of a parameter server job: a thread of ps 0 to which all other tasks connect.

Without parameter servers it is one of the dispatcher of a tf.data service. It records which tasks
have joined and left, by the rules of `presence`. When the job has ended by the rules of
`job_state`, it tells all tasks.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import secrets
import threading
import time
from typing import Callable, Dict, List, NamedTuple, Optional

from slurm_resolver.parameter_server import exit_status
from slurm_resolver.parameter_server.channels import Channel, was_lost, was_silent
from slurm_resolver.parameter_server.job_state import JobState, State
from slurm_resolver.parameter_server.monitor_port import listen
from slurm_resolver.parameter_server.presence import KILLED, Arrival, Departure, Presence
from slurm_resolver.parameter_server.protocol import (
    START_SECONDS,
    JobResult,
    MonitorAddress,
    print_line,
)
from slurm_resolver.rendezvous.peer import Event, Peer
from slurm_resolver.rendezvous.sockets import find_vanished_peers
from slurm_resolver.rendezvous.wire import LIMITS, Limits, Message

_BIND_SECONDS = 10.0  # to wait for the port, which a meeting on this node may still use
_RESULT_SECONDS = 3.0  # for the result to arrive
_ANOTHER_SECONDS = 1.0  # for the news that a task has left, where another process comes as it


class _Another(NamedTuple):
    """Another process than the one that acts as the task has come, by this message."""

    message: Message
    refused_at: float


class Monitor:
    """The monitor, with the methods that `Member` has in the other tasks."""

    def __init__(
        self,
        address: MonitorAddress,
        limits: Limits = LIMITS,
        bind_seconds: float = _BIND_SECONDS,
        make_state: Callable[[MonitorAddress, float], State] = JobState,
        say: Callable[[str], None] = print_line,
    ) -> None:
        self._address = address
        self._limits = limits
        self._bind_seconds = bind_seconds
        self._make_state = make_state
        self._say = say
        self._thread: Optional[threading.Thread] = None
        self._result: Optional[JobResult] = None
        self._absent = {task.rank for task in address.tasks}  # those that have never come
        self._all_joined = threading.Event()  # or it does not listen
        self._leaves = False  # whether this process ends before the job
        self._tell_until: Optional[float] = None  # once the job has ended
        self._presence = Presence(address.grace)
        self._others: Dict[Peer, _Another] = {}
        self._number = secrets.token_hex(8)
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
        self._state = self._make_state(self._address, timeout)
        self._absent = set(filter(self._state.has, self._absent))
        try:
            self._server = listen(self._address, self._limits, self._bind_seconds, self._say)
        except BaseException:
            self._all_joined.set()
            raise
        self._timeout = timeout
        self._started = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, name="slurm_resolver monitor", daemon=True
        )
        self._thread.start()

    def await_joined(self, timeout: float) -> bool:
        """Returns whether all others have joined, if only to end; after at most so many seconds."""
        return self._all_joined.wait(timeout)

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

    def _run(self) -> None:
        while self._result is None or (self._has_to_tell and not self._leaves):
            for event in self._server.events(self._seconds_to_wait()):
                self._handle(event)
            self._look_at_the_clock()
            if self._result is None:
                self._result = self._state.result(time.monotonic() - self._started)
                if self._result is not None and self._has_to_tell:
                    # Those without a connection are told when they come again.
                    for peer in self._server.peers:
                        self._server.send(peer, self._result_message())
        # It waits until all have received it, as this process may end right after.
        self._server.finish(self._result_message(), _RESULT_SECONDS)

    @property
    def _has_to_tell(self) -> bool:
        """Whether there are tasks that may have to come again to be told the result.

        Besides those that are away, these are the ones that have not closed their channel: their
        relay may end, or be stopped, before it has passed the result on.
        """
        if self._presence.away:
            return True
        now = time.monotonic()
        if self._tell_until is None:
            self._tell_until = now + max(_RESULT_SECONDS, self._address.grace / 2)
        return self._server.has_channels and now < self._tell_until

    def _result_message(self) -> Message:
        assert self._result is not None
        return {"status": self._result.status, "message": self._result.message}

    def _seconds_to_wait(self) -> Optional[float]:
        """Returns after how many seconds there is something to do without any message."""
        now = time.monotonic()
        times: List[float] = [other.refused_at for other in self._others.values()]
        if self._presence.next_deadline is not None:
            times.append(self._presence.next_deadline)
        if self._tell_until is not None and self._tell_until > now:
            times.append(self._tell_until)
        if now < self._started + self._timeout < math.inf:
            times.append(self._started + self._timeout)
        return max(0.0, min(times) - now) if times else None

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        for departure in self._presence.overdue(now):
            if departure.peer is not None:
                self._server.drop(departure.peer)
            self._handle_departure(departure)
        for peer, other in list(self._others.items()):
            if other.refused_at <= now:
                del self._others[peer]
                if self._server.has(peer):  # it has not gone in the meantime
                    self._handle_join(peer, other.message, is_last_look=True)

    def _handle(self, event: Event) -> None:
        peer, message, presence = event.peer, event.message, self._presence
        rank = presence.rank(peer)
        if message is None:
            if was_lost(peer):
                self._handle_departure(presence.lose(peer, was_silent(peer), time.monotonic()))
            else:
                self._handle_departure(presence.close(peer, event.reason or KILLED))
        elif rank is None:
            if peer.rank is None and peer not in self._others:
                self._handle_join(peer, message)
        elif "serves" in message:
            self._note_serves(rank, bool(message["serves"]))
        elif "ends" in message:
            presence.tell_end(peer, str(message["ends"]), time.monotonic())
            if isinstance(peer, Channel):
                self._server.send(peer, {"noted": True})

    def _handle_join(self, peer: Peer, message: Message, is_last_look: bool = False) -> None:
        address, rank, identity = self._address, message.get("rank"), message.get("identity")
        number, turn = message.get("process"), message.get("turn", 0)
        of_this_step = isinstance(identity, list) and identity[:1] == [address.identity[0]]
        is_process = isinstance(number, str) and type(turn) is int
        if not of_this_step or not is_process or not self._state.has(rank):
            self._server.drop(peer)
            return
        assert isinstance(rank, int)
        assert isinstance(number, str)
        if identity != list(address.identity):
            self._refuse(
                peer, rank, "makes another cluster of this step: all tasks need the same arguments"
            )
            return
        arrival = self._presence.arrival(rank, number, turn)
        if arrival is Arrival.OVERTAKEN:
            self._server.drop(peer)
        elif arrival is Arrival.ANOTHER:
            if is_last_look:
                self._refuse(
                    peer,
                    rank,
                    "is another process than the one that acts as this task, and which has not "
                    "ended: a task may have one at a time",
                )
            else:  # the news that the former has ended may come right after
                refused_at = time.monotonic() + _ANOTHER_SECONDS
                self._others[peer] = _Another(message, refused_at)
        else:
            before = self._presence.peer(rank)
            self._presence.come(rank, number, peer, turn)
            self._admit(peer, rank, before, arrival, bool(message.get("serves")))

    def _admit(
        self, peer: Peer, rank: int, before: Optional[Peer], arrival: Arrival, serves: bool
    ) -> None:
        """Welcomes a process that has come as a task; `before` is its connection until now."""
        address = self._address
        if before is not None:
            self._server.drop_old(before)
        self._server.accept(peer, rank)
        with contextlib.suppress(OSError):  # it may have ended already
            find_vanished_peers(peer.socket, address.grace)
        self._absent.discard(rank)
        if not self._absent:
            self._all_joined.set()
        if arrival is Arrival.NEW:
            self._state.joined(rank, serves)
        else:
            self._note_serves(rank, serves)
        self._server.send(peer, {"welcome": True, "process": self._number, "grace": address.grace})
        if self._result is not None:
            self._server.send(peer, self._result_message())

    def _note_serves(self, rank: int, serves: bool) -> None:
        if serves:
            self._state.only_serves(rank)
        else:
            self._state.trains(rank)

    def _refuse(self, peer: Peer, rank: int, reason: str) -> None:
        address = self._address
        self._say(f"{address.name(rank)} {reason}")
        self._server.send(peer, {"refused": f"{address.name(address.rank)} {reason}"})
        self._server.drop(peer)

    def _handle_departure(self, departure: Optional[Departure]) -> None:
        if departure is not None and self._result is None:
            self._state.left(departure.rank, departure.failure)

    def _send_end(self) -> None:
        """Tells all tasks at the end of this process: without a result the job has failed."""
        thread = self._thread
        if os.getpid() != self._pid or thread is None or not thread.is_alive():
            return
        self._leaves = True
        self._result = self._result or self._state.monitor_left(exit_status.failure_reason())
        self._server.wake()
        thread.join(2 * _RESULT_SECONDS)

    def _close_in_child(self) -> None:
        """Closes a forked process's copies of the sockets, which would keep the port in use."""
        if self._thread is not None:
            self._server.close_in_child()
