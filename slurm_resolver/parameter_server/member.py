"""The connection of a task to the monitor of its job; every task but ps 0 has one."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from typing import Optional

from slurm_resolver.parameter_server import exit_status
from slurm_resolver.parameter_server.protocol import (
    START_SECONDS,
    JobResult,
    MonitorAddress,
    print_line,
)
from slurm_resolver.rendezvous.wire import Connection, WireError, find_vanished_peers

_CONNECT_SECONDS = 3.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between two attempts to connect
_SLOW_AFTER_SECONDS = 600.0  # a monitor that is not up by then may never be: try less often
_SLOW_PAUSE = 10.0
_LEAVE_SECONDS = 4.0  # at the end of this process, to join first and then tell how it ends
_END_SECONDS = 5.0  # for a task that trains to end by itself, when the job has failed


class Member:
    """The connection of a task other than ps 0 to the monitor; a thread waits for the result.

    Where the job has failed, this ends a task that trains, and so does not call `wait`, with status
    1: TensorFlow would wait for the lost servers for ever.
    """

    def __init__(self, address: MonitorAddress, end_seconds: float = _END_SECONDS) -> None:
        self._address = address
        self._end_seconds = end_seconds
        self._serves = address.tasks[address.rank].job == "ps"
        self._waits = False  # whether the main thread waits for the result
        self._lock = threading.Lock()  # for the connection, and the fields that are sent over it
        self._connection: Optional[Connection] = None
        self._joined = threading.Event()  # or no longer tries to join
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
                    f"nothing answers at {address.host}:{address.port}. It has not started, has "
                    "failed, or does not call serve(): look at its output",
                )
            )

    def wait(self) -> JobResult:
        """Waits until the job has ended, and returns how."""
        self._decided.wait()
        assert self._result is not None
        return self._result

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
        if connection is None:
            return
        result = self._receive_result(connection)
        with self._lock:
            self._connection = None
            connection.close()
        self._decide(result)
        if result.status and not self._waits:
            self._end_process(result)

    def _join(self) -> Optional[Connection]:
        """Tries until it has joined; None where it is refused, or this process ends before."""
        pause, started = _FIRST_PAUSE, time.monotonic()
        while not self.decided:
            is_last_attempt = self._failure is not None
            try:
                return self._connect()
            except (OSError, WireError):
                if is_last_attempt:
                    break
            slow = time.monotonic() - started > _SLOW_AFTER_SECONDS
            if self._retry_now.wait(_SLOW_PAUSE if slow else pause):
                self._retry_now.clear()
            pause = min(2 * pause, _LONGEST_PAUSE)
        return None

    def _connect(self) -> Optional[Connection]:
        address = self._address
        connection = Connection.open((address.host, address.port), _CONNECT_SECONDS)
        try:
            find_vanished_peers(connection.socket)
            serves = self._serves
            connection.send({"rank": address.rank, "identity": address.identity, "serves": serves})
            answer = connection.receive(time.monotonic() + _CONNECT_SECONDS) or {}
            if "refused" in answer:
                print_line(f"{address.name(address.rank)}: {answer['refused']}")
                self._decide(JobResult(1, str(answer["refused"])))
                connection.close()
                return None
            if "welcome" not in answer:
                raise WireError("no monitor")
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._connection = connection
            if self._serves and not serves:
                self._send(serves=True)
            if self._failure is not None:
                self._send(ends=self._failure)
        return connection

    def _receive_result(self, connection: Connection) -> JobResult:
        with contextlib.suppress(WireError):
            message = connection.receive()
            while message is not None:
                if isinstance(message.get("status"), int):
                    return JobResult(message["status"], str(message.get("message")))
                message = connection.receive()
        monitor = self._address.name(self._address.monitor_rank)
        return JobResult(1, f"{monitor} is lost, and its variables with it: look at its output")

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

    def _close_in_child(self) -> None:
        """Closes a forked process's copy of the connection, which it would keep open."""
        if self._connection is not None:
            self._connection.close_in_child()


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
