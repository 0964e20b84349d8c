"""A stand-in for slurmstepd's side of PMI-2: one for all tasks of a step, on as many nodes.

Written from Slurm's source (src/plugins/mpi/pmi2), as a task sees it over its socket.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Callable, Dict, List, Optional, Sequence, Tuple

WELCOME = b"cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n"
Answer = Callable[[str, Dict[str, str]], Optional[bytes]]


def frame(text: str) -> bytes:
    return b"%-6d%s" % (len(text), text.encode())


class Stepd:
    """Answers the tasks of a step, `nodes` of which have so many tasks each.

    `answer` may take the place of an answer: it gets the command and its fields and returns bytes,
    b"" for none, or None for what slurmstepd answers. `piece` is how many bytes are sent at once.
    """

    def __init__(
        self, nodes: Sequence[int] = (1,), answer: Optional[Answer] = None, piece: int = 1 << 20
    ) -> None:
        self.answer = answer or (lambda command, fields: None)
        self.piece = piece
        self.requests: List[str] = []
        self._store: Dict[str, str] = {}
        self._put: Dict[str, str] = {}  # not there before the fence
        self._on_node: List[Dict[str, str]] = [{} for _ in nodes]
        self._waiting: List[socket.socket] = []
        self._lock = threading.Lock()
        self._ends: List[Tuple[socket.socket, socket.socket]] = []
        self._threads = []
        node_of = [node for node, count in enumerate(nodes) for _ in range(count)]
        self.size = len(node_of)
        for rank, node in enumerate(node_of):
            ours, theirs = socket.socketpair()
            self._ends.append((ours, theirs))
            thread = threading.Thread(target=self._serve, args=(ours, rank, node), daemon=True)
            self._threads.append(thread)
            thread.start()

    def fd(self, rank: int = 0) -> int:
        """PMI_FD of a task."""
        return self._ends[rank][1].fileno()

    def close(self) -> None:
        for ours, theirs in self._ends:
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            theirs.close()
        for thread in self._threads:
            thread.join()
        for ours, _ in self._ends:
            ours.close()

    def _serve(self, connection: socket.socket, rank: int, node: int) -> None:
        with contextlib.suppress(OSError, EOFError):
            line = connection.recv(64)
            self._send(connection, self.answer("init", {"line": line.decode()}), WELCOME)
            while True:
                length = int(_receive(connection, 6))
                request = _receive(connection, length).decode()
                self.requests.append(request)
                pairs = dict(part.split("=", 1) for part in request[:-1].split(";"))
                command = pairs.pop("cmd")
                self._send(connection, self.answer(command, pairs), b"", command, pairs, rank, node)

    def _send(
        self,
        connection: socket.socket,
        instead: Optional[bytes],
        data: bytes,
        command: str = "",
        fields: Optional[Dict[str, str]] = None,
        rank: int = 0,
        node: int = 0,
    ) -> None:
        if instead is not None:
            data = instead
        elif command:
            data = self._usual(connection, command, fields or {}, rank, node)
        for start in range(0, len(data), self.piece):
            connection.sendall(data[start : start + self.piece])
        if command == "finalize":
            connection.shutdown(socket.SHUT_RDWR)

    def _usual(
        self, connection: socket.socket, command: str, fields: Dict[str, str], rank: int, node: int
    ) -> bytes:
        rest = ""
        with self._lock:
            if command == "fullinit":
                rest = f"pmi-version=2;rank={rank};size={self.size};"
            elif command == "kvs-put":
                self._put[fields["key"]] = fields["value"]
            elif command == "info-putnodeattr":
                self._on_node[node][fields["key"]] = fields["value"]
            elif command in ("kvs-get", "info-getnodeattr"):
                known = self._store if command == "kvs-get" else self._on_node[node]
                value = known.get(fields["key"])
                rest = "found=FALSE;" if value is None else f"found=TRUE;value={value};"
            elif command == "kvs-fence":
                self._waiting.append(connection)
                if len(self._waiting) < self.size:
                    return b""
                self._store.update(self._put)
                for one in self._waiting:
                    if one is not connection:
                        one.sendall(frame("cmd=kvs-fence-response;rc=0;"))
                self._waiting.clear()
        return frame(f"cmd={command}-response;rc=0;{rest}")


def _receive(connection: socket.socket, length: int) -> bytes:
    data = connection.recv(length, socket.MSG_WAITALL)
    if len(data) < length:
        raise EOFError
    return data
