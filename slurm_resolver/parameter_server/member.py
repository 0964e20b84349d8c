"""The connection of a task to the monitor of its job; every task but the monitor's has one."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import sys
import threading
import time
from typing import Optional, Tuple

from slurm_resolver.errors import RendezvousError
from slurm_resolver.parameter_server import exit_status
from slurm_resolver.parameter_server.observed_socket import ObservedSocket, has_arrived
from slurm_resolver.parameter_server.protocol import (
    SERVING_JOBS,
    START_SECONDS,
    JobResult,
    MonitorAddress,
    print_line,
)
from slurm_resolver.parameter_server.relayed_socket import RelayedSocket
from slurm_resolver.parameter_server.route import CONNECT_SECONDS, Route
from slurm_resolver.rendezvous.handshake import join
from slurm_resolver.rendezvous.secret import key_of_offer
from slurm_resolver.rendezvous.wire import Connection, Message, WireError

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between two attempts to connect
_SLOW_AFTER_SECONDS = 600.0  # a monitor that is not up by then may never be: try less often
_SLOW_PAUSE = 10.0
_ARRIVAL_PAUSE = 0.01
_LEAVE_SECONDS = 4.0  # at the end of this process, to join first and then tell how it ends
_OTHERS_SECONDS = 2.0  # for the other tasks of this node to get the result through this one
_END_SECONDS = 5.0  # for a task that trains to end by itself, when the job has failed


class Member:
    """The connection of a task other than the monitor's; a thread waits for the result.

    Where the connection is lost, though the monitor has not closed it, the thread connects again.

    Where the job has failed, this ends a task that trains, and so does not call `wait`, with status
    1: TensorFlow would wait for the lost servers for ever. One that `only_tells` that the task is
    there ends nothing, and says nothing.
    """

    def __init__(
        self, address: MonitorAddress, end_seconds: float = _END_SECONDS, only_tells: bool = False
    ) -> None:
        self._address = address
        self._end_seconds = end_seconds
        self._serves = address.tasks[address.rank].job in SERVING_JOBS
        self._say = _say_nothing if only_tells else print_line
        self._waits = only_tells  # whether the main thread waits for the result
        self._lock = threading.Lock()  # for the connection, and the fields that are sent over it
        self._connection: Optional[Connection] = None
        self._joined = threading.Event()  # or no longer tries to join
        self._settled = threading.Event()  # while it does not try to connect again
        self._settled.set()
        self._number = secrets.token_hex(8)  # by which the monitor knows this process again
        self._monitor: Optional[str] = None  # the same of the monitor's process
        self._turn = 0  # how often it has tried to join
        self._route = Route(address)
        self._noted = False  # whether the monitor knows that this process ends
        self._grace = address.grace
        self._problem = ""  # why it does not trust what answers as the monitor
        self._retry_now = threading.Event()
        self._failure: Optional[str] = None  # once this process ends: why it has failed, or ''
        self._result: Optional[JobResult] = None
        self._decided = threading.Event()
        self._pid = os.getpid()
        exit_status.record_exit_status()
        atexit.register(self._send_end)
        os.register_at_fork(after_in_child=self._close_in_child)
        threading.Thread(target=self._run, name="slurm_resolver member", daemon=True).start()

    def serve(self, timeout: float = START_SECONDS) -> None:
        """Tells the monitor that this task only serves; returns when it knows or the job has ended.

        After `timeout` seconds without a monitor the job counts as failed.
        """
        with self._lock:
            self._serves = self._waits = True
            self._send(serves=True)
        self._retry_now.set()
        if not self._joined.wait(timeout):
            address = self._address
            self._decide(
                JobResult(
                    1,
                    f"{address.name(address.monitor_rank)} has not come within {timeout:g} s: "
                    + (
                        self._problem
                        or f"nothing answers at {address.host}:{address.port}. It has not started, "
                        "has failed, or does not call serve(): look at its output"
                    ),
                )
            )

    def tell(self, serves: bool) -> None:
        """Tells the monitor whether this task only serves, as far as is known now."""
        with self._lock:
            if serves != self._serves:
                self._serves = serves
                self._send(serves=serves)

    def await_joined(self, timeout: float) -> bool:
        """Returns whether the monitor knows this task, after at most so many seconds."""
        return self._joined.wait(timeout)

    def wait(self) -> JobResult:
        """Waits until the job has ended, and returns how."""
        self._decided.wait()
        assert self._result is not None
        return self._result

    def await_decided(self, timeout: float) -> bool:
        """Returns whether the job has ended, after at most so many seconds."""
        return self._decided.wait(timeout)

    @property
    def decided(self) -> bool:
        """Whether the job has ended."""
        return self._decided.is_set()

    def _decide(self, result: JobResult) -> None:
        self._result = self._result or result
        self._decided.set()

    def _send(self, **message: object) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):  # the thread notices that the connection has ended
                self._connection.send(message)

    def _run(self) -> None:
        connection = self._join()
        self._joined.set()
        result = None
        while connection is not None and result is None:
            result = self._receive_result(connection)
            with self._lock:
                self._connection = None
                if result is None:
                    self._settled.clear()
                    _observed(connection).abandon()
                else:
                    connection.close()
            if result is None:
                connection, result = self._come_again(_observed(connection))
                self._settled.set()
        if result is None:
            return
        self._route.end(_OTHERS_SECONDS)  # those who relay get it last
        self._decide(result)
        if result.status and not self._waits:
            self._end_process(result)

    def _come_again(self, lost: ObservedSocket) -> Tuple[Optional[Connection], Optional[JobResult]]:
        """Returns a new connection, or how the job ends where there is none within the grace."""
        if isinstance(lost, RelayedSocket) and lost.stalled:
            self._route.avoid_relay()
        # This end gives a silent connection up after half the grace.
        deadline = time.monotonic() + (self._grace / 2 if lost.silent else self._grace)
        pause, refused = _FIRST_PAUSE, False
        while True:
            try:
                connection = self._connect()
                return connection, None if connection is not None else self._result
            except (OSError, WireError, RendezvousError) as error:
                self._note(error)
                refused = isinstance(error, ConnectionRefusedError)
            if time.monotonic() >= deadline:
                break
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        host, port = self._address.host, self._address.port
        why = (
            f"its process has ended, nothing listens at {host}:{port} any more"
            if refused
            else f"its node has not answered for {self._grace:g} s"
        )
        return None, self._address.server_lost(self._address.monitor_rank, why)

    def _join(self) -> Optional[Connection]:
        """Tries until it has joined; None where it is refused, or this process ends before."""
        pause, started = _FIRST_PAUSE, time.monotonic()
        while not self.decided:
            is_last_attempt = self._failure is not None
            try:
                return self._connect()
            except (OSError, WireError, RendezvousError) as error:
                self._note(error)
                if is_last_attempt:
                    break
            slow = time.monotonic() - started > _SLOW_AFTER_SECONDS
            if self._retry_now.wait(_SLOW_PAUSE if slow else pause):
                self._retry_now.clear()
            pause = min(2 * pause, _LONGEST_PAUSE)
        return None

    def _note(self, error: Exception) -> None:
        """Tells once why this process and what answers as the monitor do not trust each other.

        It may be another program's doing, which ends: a reason to try again, and not to end.
        """
        if isinstance(error, RendezvousError) and not self._problem:
            self._problem = str(error)
            self._say(f"{self._address.name(self._address.rank)}: {error}")

    def _connect(self) -> Optional[Connection]:
        """Joins, and returns the connection; None where this process is refused."""
        address = self._address
        sock = self._route.open(lambda: self._failure is None)
        connection = Connection.greet(sock)
        try:
            name, until = address.name(address.monitor_rank), time.monotonic() + CONNECT_SECONDS
            join(connection, address.meeting, key_of_offer, name, until)
            serves = self._serves
            self._turn += 1
            connection.send(
                {
                    "rank": address.rank,
                    "process": self._number,
                    "turn": self._turn,
                    "identity": address.identity,
                    "serves": serves,
                }
            )
            answer = connection.receive(time.monotonic() + CONNECT_SECONDS) or {}
            refused = answer.get("refused")
            if "welcome" in answer and self._monitor not in (None, answer.get("process")):
                refused = address.server_lost(
                    address.monitor_rank, "its process has ended, another one acts as it"
                ).message
            if refused is not None:
                self._say(f"{address.name(address.rank)}: {refused}")
                self._decide(JobResult(1, str(refused)))
                connection.close()
                return None
            if "welcome" not in answer:
                raise WireError("no monitor")
            self._remember(sock, answer)
        except BaseException:
            sock.abandon()  # the monitor may have heard it, and this process tries again
            raise
        with self._lock:
            self._connection = connection
            if self._serves != serves:
                self._send(serves=self._serves)
            if self._failure is not None:
                self._send(ends=self._failure)
        return connection

    def _remember(self, sock: ObservedSocket, welcome: Message) -> None:
        """Keeps what this process needs to come again."""
        grace = welcome.get("grace")
        if isinstance(grace, (int, float)) and grace > 0:
            self._grace = float(grace)
        self._monitor = str(welcome.get("process"))
        self._route.remember(sock, self._grace)

    def _receive_result(self, connection: Connection) -> Optional[JobResult]:
        """Waits for the result, and returns it; None where the connection was lost."""
        with contextlib.suppress(WireError):
            message = connection.receive()
            while message is not None:
                if isinstance(message.get("status"), int):
                    return JobResult(message["status"], str(message.get("message")))
                self._noted = self._noted or "noted" in message
                message = connection.receive()
            if _observed(connection).lost:
                return None
        return self._address.server_lost(self._address.monitor_rank, "look at its output")

    def _end_process(self, result: JobResult) -> None:
        if self._failure == "":
            return  # it is ending by itself, without an error
        name = self._address.name(self._address.rank)
        print_line(f"{name}: {result.message}. This process ends")
        time.sleep(self._end_seconds)
        if self._failure == "":
            return
        # Flushing may hang, as everything in this process may: a thread does it, for 1 s at most.
        flushing = threading.Thread(target=_flush_output, daemon=True)
        flushing.start()
        flushing.join(1.0)
        os._exit(1)

    def _send_end(self) -> None:
        """Tells the monitor at the end of this process how it ends."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._failure = exit_status.failure_reason()
            self._send(ends=self._failure)
        self._retry_now.set()
        self._joined.wait(_LEAVE_SECONDS)
        self._await_arrival()

    def _await_arrival(self) -> None:
        """Waits until what this process has told has arrived; else it would count as lost.

        In a gap of the network that lasts, but no longer than the monitor waits for this task.
        """
        deadline = time.monotonic() + self._grace
        while time.monotonic() < deadline and not self.decided:
            with self._lock:
                sock = None if self._connection is None else self._connection.socket
                if sock is None:
                    arrived = self._settled.is_set()
                else:  # what is with a relay could end with it
                    relayed = isinstance(sock, RelayedSocket)
                    arrived = self._noted if relayed else has_arrived(sock)
            if arrived:
                break
            time.sleep(_ARRIVAL_PAUSE)

    def _close_in_child(self) -> None:
        """Closes a forked process's copies of the connections, which it would keep open."""
        if self._connection is not None:
            self._connection.close_in_child()
        self._route.close_in_child()


def _observed(connection: Connection) -> ObservedSocket:
    assert isinstance(connection.socket, ObservedSocket)
    return connection.socket


def _say_nothing(text: str) -> None:
    """Stands in for `print_line`."""


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
