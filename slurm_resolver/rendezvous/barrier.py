"""All tasks of a step meet at one of them, over plain TCP: each leaves a note, all get one answer.

The wire: a greeting, then frames of a 4-byte length and JSON. A task sends one frame, its note; it
gets an empty frame when the note is taken, and one frame with the answer when all have come or the
time is up. Whoever does not greet, or belongs to another job or step, is turned away.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

from slurm_resolver.errors import RendezvousError

Note = Dict[str, Any]
Decide = Callable[[Dict[int, Note]], Dict[str, Any]]

_GREETING = b"slurm_resolver meeting 1\n"
_LENGTH = struct.Struct("!I")
_LONGEST_NOTE = 64 * 1024
_LONGEST_ANSWER = 64 * 1024 * 1024
_HANDSHAKE_SECONDS = 5.0  # a task sends its note at once: who is silent for longer is no task
_STRANGERS = 256  # connections beyond one a task that are listened to at a time
_GRACE_SECONDS = 4.0  # for the answer to arrive, after the time is up


class MeetingPoint(NamedTuple):
    """Where the tasks meet, and who this one is.

    Attributes:
        host, port: what to connect to.
        name: the meeting point as messages name it.
        identity: job, step and purpose; only tasks with the same one meet.
        rank: this task's.
        expected: by rank, how messages name each task that is to come.
        is_host: whether this task is the one that the others come to.
    """

    host: str
    port: int
    name: str
    identity: str
    rank: int
    expected: List[str]
    is_host: bool


def meet(point: MeetingPoint, note: Note, decide: Decide, timeout: float) -> Dict[str, Any]:
    """Leaves this task's note, and returns the answer that all tasks get.

    Args:
        point: where to meet.
        note: what this task has to say; at most 64 KiB of JSON.
        decide: called at the meeting point alone, with the notes of all tasks by rank; it returns
            the answer, or raises RendezvousError, which then every task raises.
        timeout: seconds until every task raises, with the names of those that have not come.

    Raises:
        RendezvousError: where not all have come, the meeting point is not to be reached, or
            `decide` says so.
    """
    deadline = time.monotonic() + timeout
    answer = _host(point, note, decide, deadline) if point.is_host else _come(point, note, deadline)
    if "error" in answer:
        raise RendezvousError(str(answer["error"]), shared=True)
    return answer


def _frame(value: Any) -> bytes:
    body = json.dumps(value, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


def _missing(point: MeetingPoint, present: Set[int], gone: Set[int], timeout: float) -> str:
    absent = [name for rank, name in enumerate(point.expected) if rank not in present]
    shown = ", ".join(absent[:20]) + (f" and {len(absent) - 20} more" if len(absent) > 20 else "")
    left = ", ".join(point.expected[rank] for rank in sorted(gone))
    what = f"{len(absent)} of {len(point.expected)} tasks are missing at {point.name}"
    if left:
        return f"{what}: {left} came and ended again. Look at the output of these tasks."
    return (
        f"{what} after {timeout:.0f} s: {shown}. They have not started, have ended, or cannot "
        "reach it: look at their output, and for a packet filter between the nodes."
    )


class _Host:
    """The meeting point: takes notes until all have come, then gives everybody the answer."""

    def __init__(self, point: MeetingPoint, note: Note) -> None:
        self._point = point
        self.notes: Dict[int, Note] = {point.rank: note}
        self.gone: Set[int] = set()
        self._connections = 0
        self._answer = b""
        self._changed = asyncio.Event()
        self._answered = asyncio.Event()
        self._tasks: Set[asyncio.Task[None]] = set()  # a connection each
        self._members: Set[asyncio.Task[None]] = set()  # those whose note was taken

    async def run(self, decide: Decide, deadline: float) -> Dict[str, Any]:
        started = time.monotonic()
        limit = len(self._point.expected) + _STRANGERS
        server = await asyncio.start_server(
            self._serve, port=self._point.port, backlog=min(limit, 4096), limit=_LONGEST_NOTE
        )
        try:
            while len(self.notes) < len(self._point.expected):
                self._changed.clear()
                if self.gone:  # it has failed; those on their way shall be told as well
                    deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                try:
                    await asyncio.wait_for(self._changed.wait(), remaining)
                except asyncio.TimeoutError:
                    break
            answer = self._decide(decide, time.monotonic() - started)
            self._answer = _frame(answer)
            self._answered.set()
            # Who has its answer may be on the way to the step's next meeting: not here.
            server.close()
            if self._members:
                await asyncio.wait(self._members, timeout=_GRACE_SECONDS)
            return answer
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _decide(self, decide: Decide, waited: float) -> Dict[str, Any]:
        if self.gone or len(self.notes) < len(self._point.expected):
            present = set(self.notes) - self.gone
            return {"error": _missing(self._point, present, self.gone, waited)}
        try:
            return decide(self.notes)
        except RendezvousError as error:
            return {"error": str(error)}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._connections += 1
        try:
            if self._connections <= len(self._point.expected) + _STRANGERS:
                await self._listen(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, ValueError):
            pass  # a stranger, or a task that is gone: its absence will be told
        finally:
            self._connections -= 1
            self._tasks.discard(task)
            self._members.discard(task)
            writer.close()

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await asyncio.wait_for(self._read_note(reader), _HANDSHAKE_SECONDS)
        if self._answered.is_set():
            return
        message = json.loads(body)
        rank, note = message["rank"], message["note"]
        if message["identity"] != self._point.identity or not isinstance(note, dict):
            return
        if not isinstance(rank, int) or not 0 <= rank < len(self._point.expected):
            return
        if rank in self.notes:
            writer.write(_frame({"error": f"{self._point.expected[rank]} came twice"}))
            return
        self.notes[rank] = note
        task = asyncio.current_task()
        assert task is not None
        self._members.add(task)
        writer.write(_LENGTH.pack(0))
        self._changed.set()
        # Nothing more is said until the answer; the end of the connection is the task's end.
        ended = asyncio.ensure_future(reader.read(1))
        answered = asyncio.ensure_future(self._answered.wait())
        try:
            await asyncio.wait({ended, answered}, return_when=asyncio.FIRST_COMPLETED)
            if not answered.done():
                self.gone.add(rank)
                self._changed.set()
                return
            writer.write(self._answer)
            await asyncio.wait_for(writer.drain(), _GRACE_SECONDS)
        finally:
            ended.cancel()
            answered.cancel()

    async def _read_note(self, reader: asyncio.StreamReader) -> bytes:
        if await reader.readexactly(len(_GREETING)) != _GREETING:
            raise ValueError("no greeting")
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > _LONGEST_NOTE:
            raise ValueError("too long")
        return await reader.readexactly(length)


def _host(point: MeetingPoint, note: Note, decide: Decide, deadline: float) -> Dict[str, Any]:
    """Runs the meeting point in a thread: the caller may have an event loop of its own."""
    outcome: List[Any] = []

    async def hold() -> Dict[str, Any]:
        return await _Host(point, note).run(decide, deadline)

    def run() -> None:
        try:
            outcome.append(asyncio.run(hold()))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, name="slurm_resolver meeting")
    thread.start()
    thread.join()
    result = outcome[0]
    if isinstance(result, OSError):
        raise RendezvousError(
            f"{point.expected[point.rank]} cannot listen at {point.name}: {result}. Another "
            "process on this node has the port: give another port_base, or start with srun "
            "--resv-ports."
        ) from result
    if isinstance(result, BaseException):
        raise result
    return dict(result)


def _come(point: MeetingPoint, note: Note, deadline: float) -> Dict[str, Any]:
    body = _GREETING + _frame({"identity": point.identity, "rank": point.rank, "note": note})
    pause = 0.02
    problem: Optional[Exception] = None
    started = time.monotonic()
    while True:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            break
        try:
            address = (point.host.strip("[]"), point.port)
            with socket.create_connection(address, timeout=min(remaining, 5.0)) as connection:
                connection.sendall(body)
                taken = _receive(connection, time.monotonic() + 2 * _HANDSHAKE_SECONDS)
                if taken is not None:
                    return _answer(point, connection, taken, deadline)
                problem = ConnectionError("it closed the connection")
        except OSError as error:
            problem = error
        time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
        pause = min(2 * pause, 0.5)
    raise RendezvousError(
        f"{point.expected[point.rank]} could not reach {point.name} within "
        f"{time.monotonic() - started:.0f} s ({problem}). The task there has not started or has "
        "ended, its node's name does not resolve here, or a packet filter is between the nodes."
    )


def _answer(
    point: MeetingPoint, connection: socket.socket, taken: bytes, deadline: float
) -> Dict[str, Any]:
    if taken:  # not the empty frame: the note was refused, with the reason
        return dict(json.loads(taken))
    body = _receive(connection, deadline + _GRACE_SECONDS)
    if body is None:
        raise RendezvousError(
            f"{point.name} has ended before it answered {point.expected[point.rank]}: look at the "
            "output of the task there."
        )
    return dict(json.loads(body))


def _receive(connection: socket.socket, deadline: float) -> Optional[bytes]:
    """Returns the next frame's body; None where the connection ends, or the time is up, before."""
    body = b""
    length = _LENGTH.size
    header = True
    while len(body) < length:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return None
        connection.settimeout(remaining)
        try:
            piece = connection.recv(min(length - len(body), 65536))
        except OSError:
            return None
        if not piece:
            return None
        body += piece
        if header and len(body) == length:
            (length,) = _LENGTH.unpack(body)
            body, header = b"", False
            if length > _LONGEST_ANSWER:
                return None
    return body
