"""Who is still there? A TCP connection from every task of a parameter server job to its ps 0.

A parameter server never leaves before those it serves, so ps 0 is the hub of a star: `hub.py`. This
is the side of all other tasks, and what both sides share.

The wire is one JSON object a line. A task introduces itself, is welcomed, and may say that from now
on it only serves (`serves`), or how its process ends (`ends`: '' or the reason). The hub says one
thing more, the verdict: the exit status and why. However a process ends, the kernel closes its
connections; where a whole node vanishes, TCP's own probes find out, which cost neither side a
thing while all is well.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import socket
import sys
import threading
import time
from typing import Any, BinaryIO, Dict, NamedTuple, Optional, Sequence

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.tasks import Task
from slurm_resolver.parameter_server import exit_status as ending
from slurm_resolver.slurm.step import SlurmStep

LONGEST_LINE = 4096
START_SECONDS = 300.0
_VANISHED_MS = 8000  # without an answer: then the other node is taken for gone
_CONNECT_SECONDS = 3.0
_SLOWEST_RETRY = 1.0
_PATIENT_AFTER = 600.0  # whoever is not up by then may never be: ask less often
_LEAVE_SECONDS = 4.0
_END_SECONDS = 5.0  # for a task that trains to end by itself, when the job has failed


class Verdict(NamedTuple):
    """How the job has ended: the exit status of those that serve, and what there is to say."""

    status: int
    message: str


class Star(NamedTuple):
    """The lifelines of one job, as this task sees them.

    Attributes:
        host, port: where the hub listens.
        identity: the job, its step and a digest of the cluster.
        tasks: all tasks of the step by rank.
        rank: this task's.
        hub: the rank of ps 0.
    """

    host: str
    port: int
    identity: Sequence[str]
    tasks: Sequence[Task]
    rank: int
    hub: int

    def name(self, rank: int) -> str:
        """Returns how messages name a task."""
        task = self.tasks[rank]
        return f"{task.job} {task.index} (rank {rank} on {task.node})"


def star(cluster: Cluster, step: SlurmStep) -> Optional[Star]:
    """Returns where this task's lifeline leads.

    None without parameter servers or without anybody who trains, and for the evaluator, which
    nobody waits for.
    """
    own, port = cluster.task, cluster.meeting_port
    hubs = [task for task in cluster.tasks if task.job == "ps" and task.index == 0]
    trained = any(task.job in ("chief", "worker") for task in cluster.tasks)
    if not hubs or not trained or own is None or own.job == "evaluator" or port is None:
        return None
    jobs = json.dumps([(task.job, task.index, task.address) for task in cluster.tasks])
    return Star(
        host=hubs[0].address.rpartition(":")[0].strip("[]"),
        port=port,
        identity=(
            f"{step.job_id}.{step.step_id}.{step.sluid}",
            hashlib.sha256(jobs.encode()).hexdigest()[:16],
        ),
        tasks=cluster.tasks,
        rank=own.rank,
        hub=hubs[0].rank,
    )


def line(**message: Any) -> bytes:
    """Returns a message as it goes over the wire."""
    return json.dumps(message).encode() + b"\n"


def read_line(text: bytes) -> Dict[str, Any]:
    """Returns the message in a line; ValueError where there is none."""
    try:
        message = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(message, dict):
        raise ValueError("no object")
    return message


def keep_alive(connection: socket.socket) -> None:
    """Lets the kernel find out within about 10 s that the other node is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)
    # also while something sent is not acknowledged, when there are no probes
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _VANISHED_MS)


def say(text: str) -> None:
    """Writes a line to the standard error, at once and in one piece."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
        sys.stderr.write(f"slurm_resolver: {text}\n")
        sys.stderr.flush()


class Member:
    """The lifeline of a task other than ps 0, held by a thread that sleeps.

    A task that trains, and so is not in `wait`, is ended with status 1 where the job has failed:
    TensorFlow would wait for the lost servers for ever.
    """

    def __init__(self, star: Star) -> None:
        self._star = star
        self._serves = star.tasks[star.rank].job == "ps"
        self._waits = False  # for the verdict, in the main thread
        self._lock = threading.Lock()  # of the connection and what was said on it
        self._connection: Optional[socket.socket] = None
        self._joined = threading.Event()  # or given up
        self._hurry = threading.Event()
        self._failure: Optional[str] = None  # how this process ends, once it does
        self._verdict: Optional[Verdict] = None
        self._decided = threading.Event()
        self._pid = os.getpid()
        ending.watch()
        atexit.register(self._leave)
        os.register_at_fork(after_in_child=self._forked)
        threading.Thread(target=self._hold, name="slurm_resolver lifeline", daemon=True).start()

    def serve(self, timeout: float = START_SECONDS) -> None:
        """Says that this task only serves. Returns when the hub knows, or the job has ended."""
        with self._lock:
            self._serves = self._waits = True
            self._send(serves=True)
        self._hurry.set()
        if not self._joined.wait(timeout):
            star = self._star
            self._decide(
                Verdict(
                    1,
                    f"{star.name(star.hub)} has not come within {timeout:g} s: nobody answers at "
                    f"{star.host}:{star.port}. It has not started, has failed, or does not call "
                    "serve()",
                )
            )

    def wait(self) -> Verdict:
        """Returns how the job has ended, when it has."""
        self._decided.wait()
        assert self._verdict is not None
        return self._verdict

    @property
    def decided(self) -> bool:
        """Whether the job has ended."""
        return self._decided.is_set()

    def _decide(self, verdict: Verdict) -> None:
        self._verdict = self._verdict or verdict
        self._decided.set()

    def _send(self, **message: Any) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):  # the thread notices the end
                self._connection.sendall(line(**message))

    def _hold(self) -> None:
        stream = self._join()
        self._joined.set()
        if stream is None:
            return
        verdict = self._listen(stream)
        with self._lock:
            assert self._connection is not None
            self._connection.close()
            self._connection = None
        stream.close()
        self._decide(verdict)
        if verdict.status and not self._waits:
            self._end_process(verdict)

    def _join(self) -> Optional[BinaryIO]:
        """Tries until the hub is there; None where this process ends before, or is refused."""
        pause, started = 0.05, time.monotonic()
        while not self.decided:
            last = self._failure is not None
            try:
                return self._introduce()
            except (OSError, ValueError):
                if last:
                    break
            patient = time.monotonic() - started > _PATIENT_AFTER
            if self._hurry.wait(10 * _SLOWEST_RETRY if patient else pause):
                self._hurry.clear()
            pause = min(2 * pause, _SLOWEST_RETRY)
        return None

    def _introduce(self) -> Optional[BinaryIO]:
        star = self._star
        connection = socket.create_connection((star.host, star.port), timeout=_CONNECT_SECONDS)
        try:
            keep_alive(connection)
            serves = self._serves
            hello = line(lifeline=1, identity=star.identity, rank=star.rank, serves=serves)
            connection.sendall(hello)
            stream = connection.makefile("rb")
            answer = read_line(stream.readline(LONGEST_LINE))
            if "refused" in answer:
                say(f"{star.name(star.rank)}: {answer['refused']}")
                self._decide(Verdict(1, str(answer["refused"])))
                connection.close()
                return None
            if "welcome" not in answer:
                raise ValueError("no hub")
            connection.settimeout(None)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._connection = connection
            if self._serves and not serves:
                self._send(serves=True)
            if self._failure is not None:
                self._send(ends=self._failure)
        return stream

    def _listen(self, stream: BinaryIO) -> Verdict:
        with contextlib.suppress(OSError, ValueError):
            for text in iter(lambda: stream.readline(LONGEST_LINE), b""):
                message = read_line(text)
                if "status" in message:
                    return Verdict(int(message["status"]), str(message.get("message")))
        hub = self._star.name(self._star.hub)
        return Verdict(1, f"{hub} is lost, and its variables with it: look at its output")

    def _end_process(self, verdict: Verdict) -> None:
        if self._failure == "":
            return  # it ends well, by itself
        say(f"{self._star.name(self._star.rank)}: {verdict.message}. This process ends")
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
            self._failure = ending.failure()
            self._send(ends=self._failure)
        self._hurry.set()
        self._joined.wait(_LEAVE_SECONDS)

    def _forked(self) -> None:
        """A child must not keep its parent's connection open."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                os.close(self._connection.detach())


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
