"""A task's socket to slurmstepd, by which it speaks PMI-2: ``srun --mpi=pmi2``.

As in Slurm's source (src/plugins/mpi/pmi2: agent.c, pmi2.c, client.c) and on live clusters of 22.05
to 26.05: first a line of text, then frames of six characters of length and ``cmd=…;key=value;``.

A task may greet once. A second greeting makes slurmstepd close the socket, take the node's first
task for the one that has ended, whichever it was, and may keep it from ending itself. So the socket
is marked as used, child processes do not inherit it, and a process that ends says so.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import socket
import stat
import time
from typing import Dict, Optional

from slurm_resolver.errors import RendezvousError

_REMEDY = "Start again, with SLURM_RESOLVER_PMI2=off to do without PMI-2."
_GREETING = b"cmd=init pmi_version=2 pmi_subversion=0\n"
_WELCOME = re.compile(rb"cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=\d+\n")
_LONGEST_LINE = 100

# The SO_PRIORITY of a socket that this package has used: it has no effect on one of this kind. The
# kernel keeps it as long as the socket, and shows it to all processes of the task.
_USED = 6


class Pmi2Connection:
    """The socket PMI_FD, in the one process of its task that uses it; nothing waits for ever.

    Attributes:
        problem: why it cannot be used any more; None while it can.
    """

    def __init__(self, fd: int) -> None:
        """Takes a descriptor of which `find_problem` has found nothing wrong."""
        self._fd = fd
        self._socket = socket.socket(fileno=os.dup(fd))
        self.problem: Optional[str] = None

    def greet(self, deadline: float) -> bool:
        """Returns whether slurmstepd speaks PMI-2 with this task; if not, `problem` says why.

        Raises:
            RendezvousError: where it has not answered by `deadline`, a time of `time.monotonic`.
        """
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, _USED)
        os.set_inheritable(self._fd, False)
        line = b""
        try:
            self._socket.sendall(_GREETING)
            while not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
                line += self._read(1, deadline)
        except TimeoutError:
            raise self.fail("slurmstepd did not answer the greeting in time") from None
        except (EOFError, ConnectionError):  # after cmd=finalize-response, or without it
            self.fail("another program of this task has used it")
        if self.problem is None and not _WELCOME.fullmatch(line):
            self.fail(f"slurmstepd answers the greeting with {line!r}")
        return self.problem is None

    def ask(self, command: str, rest: str, deadline: float) -> Dict[str, str]:
        """Sends a request, ``cmd=command;rest``, and returns the fields of its answer.

        Raises:
            TimeoutError: where there is none in time. The request cannot be taken back: the caller
                calls `fail`, or knows what else may arrive.
            RendezvousError: for an answer of another kind, or where the socket is closed.
        """
        if self.problem is not None:
            raise RendezvousError(f"PMI-2 is gone: {self.problem}. {_REMEDY}")
        request = f"cmd={command};{rest}".encode()
        try:
            self._socket.sendall(b"%-6d%s" % (len(request), request))
            length = self._read(6, deadline)
            if not re.fullmatch(rb"[0-9]{1,5} *", length):
                raise self.fail(f"slurmstepd answers {command} with {length!r}, and no length")
            answer = self._read(int(length), deadline).decode(errors="replace")
        except TimeoutError:
            raise
        except (EOFError, OSError) as error:
            raise self.fail(f"slurmstepd has closed the socket PMI_FD ({error})") from error
        fields = dict(part.partition("=")[::2] for part in answer.split(";") if part)
        if fields.get("cmd") != f"{command}-response" or fields.get("rc") != "0":
            raise self.fail(f"slurmstepd answers {command} with {answer[:200]!r}")
        return fields

    def fail(self, problem: str) -> RendezvousError:
        """Gives the connection up, and returns the error to raise."""
        self.problem = problem
        self._socket.close()
        return RendezvousError(f"{problem}. {_REMEDY}")

    def close(self) -> None:
        """Leaves the socket as it is; what slurmstepd knows remains."""
        self.problem = self.problem or "this process has left it"
        self._socket.close()

    def _read(self, length: int, deadline: float) -> bytes:
        received = b""
        poll = select.poll()  # select knows no descriptors from 1,024 on
        poll.register(self._socket, select.POLLIN)
        while len(received) < length:
            if not poll.poll(max(0, math.ceil(1000 * (deadline - time.monotonic())))):
                raise TimeoutError
            part = self._socket.recv(length - len(received))
            if not part:
                raise EOFError("end of file")
            received += part
        return received


def find_problem(fd: int) -> Optional[str]:
    """Returns why this process cannot use PMI_FD, without using it; None where it can."""
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return "it is no socket"
        with contextlib.closing(socket.socket(fileno=os.dup(fd))) as connection:
            if connection.family != socket.AF_UNIX or connection.type != socket.SOCK_STREAM:
                return "it is no local stream socket"
            if connection.getsockname() or connection.getpeername():
                return "it is not one of a pair of sockets, as slurmstepd makes them"
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == _USED:
                return "another program of this task has used it"
            with contextlib.suppress(BlockingIOError):
                told = connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
                return "an answer is left in it" if told else "slurmstepd has closed it"
    except OSError as error:
        return error.strerror or str(error)
    return None
