"""A task's connection to the monitor of its job: every task but ps 0 has one."""

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
_SLOWEST_RETRY = 1.0
_PATIENT_AFTER = 600.0  # a monitor that is not up by then may never be: try less often
_LEAVE_SECONDS = 4.0
_END_SECONDS = 5.0  # for a task that trains to end by itself, when the job has failed


class Member:
    """The connection of a task other than ps 0, held by a thread that sleeps.

    A task that trains, and so is not in `wait`, is ended with status 1 where the job has failed:
    TensorFlow would wait for the lost servers for ever.
    """

    def __init__(self, address: MonitorAddress) -> None:
        self._address = address
        self._serves = address.tasks[address.rank].job == "ps"
        self._waits = False  # for the result, in the main thread
        self._lock = threading.Lock()  # of the connection and what was sent over it
        self._connection: Optional[Connection] = None
        self._joined = threading.Event()  # or given up
        self._hurry = threading.Event()
        self._failure: Optional[str] = None  # how this process ends, once it does
        self._result: Optional[JobResult] = None
        self._decided = threading.Event()
        self._pid = os.getpid()
        exit_status.record_exit_status()
        atexit.register(self._leave)
        os.register_at_fork(after_in_child=self._forked)
        threading.Thread(target=self._hold, name="slurm_resolver member", daemon=True).start()

    def serve(self, timeout: float = START_SECONDS) -> None:
        """Says that this task only serves. Returns when the monitor knows, or the job has ended."""
        with self._lock:
            self._serves = self._waits = True
            self._send(serves=True)
        self._hurry.set()
        if not self._joined.wait(timeout):
            address = self._address
            self._decide(
                JobResult(
                    1,
                    f"{address.name(address.monitor_rank)} has not come within {timeout:g} s: "
                    f"nobody answers at {address.host}:{address.port}. It has not started, has "
                    "failed, or does not call serve()",
                )
            )

    def wait(self) -> JobResult:
        """Returns how the job has ended, when it has."""
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
            with contextlib.suppress(OSError):  # the thread notices the end
                self._connection.send(message)

    def _hold(self) -> None:
        connection = self._join()
        self._joined.set()
        if connection is None:
            return
        result = self._listen(connection)
        with self._lock:
            self._connection = None
            connection.close()
        self._decide(result)
        if result.status and not self._waits:
            self._end_process(result)

    def _join(self) -> Optional[Connection]:
        """Tries until the monitor is there; None where this process ends before, or is refused."""
        pause, started = 0.05, time.monotonic()
        while not self.decided:
            last = self._failure is not None
            try:
                return self._introduce()
            except (OSError, WireError):
                if last:
                    break
            patient = time.monotonic() - started > _PATIENT_AFTER
            if self._hurry.wait(10 * _SLOWEST_RETRY if patient else pause):
                self._hurry.clear()
            pause = min(2 * pause, _SLOWEST_RETRY)
        return None

    def _introduce(self) -> Optional[Connection]:
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

    def _listen(self, connection: Connection) -> JobResult:
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
            return  # it ends well, by itself
        name = self._address.name(self._address.rank)
        print_line(f"{name}: {result.message}. This process ends")
        time.sleep(_END_SECONDS)
        if self._failure == "":
            return
        # Whoever holds these files may hang, as all else here may.
        flush = threading.Thread(target=_flush, daemon=True)
        flush.start()
        flush.join(1.0)
        os._exit(1)

    def _leave(self) -> None:
        """Says how this process ends, when it does."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._failure = exit_status.failure_reason()
            self._send(ends=self._failure)
        self._hurry.set()
        self._joined.wait(_LEAVE_SECONDS)

    def _forked(self) -> None:
        """A child must not keep its parent's connection open."""
        if self._connection is not None:
            self._connection.close_in_child()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
