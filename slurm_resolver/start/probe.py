"""Whether a task can listen at its port, and whether the others reach it there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from os import strerror
from socket import SHUT_RDWR, socket, timeout
from threading import Thread

from slurm_resolver.cluster.addresses import Task
from slurm_resolver.coordination.tcp import connect_to, listen_at

_CONNECT_SECONDS = 5.0
# Follows the answer: it fills packets of every interface, also those that a network may drop.
_PADDING = bytes(16 * 1024)


@contextmanager
def listening(task: Task) -> Iterator[str]:
    """Answers each `find_unreached` of other tasks, in threads; yields why it cannot, or ''."""
    port = int(task.address.rpartition(":")[2])
    try:
        server = listen_at(port)
    except OSError as error:
        yield f"port {port}: {strerror(error.errno or 0)} (ss -ltnp shows by what)"
        return

    def answer(connection: socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(_CONNECT_SECONDS)
            connection.sendall(b"%d\n" % task.rank)
            connection.sendall(_PADDING)
            # The other side closes first: who does so cannot use the port again for a minute.
            connection.recv(1)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                Thread(target=answer, args=[connection], daemon=True).start()

    Thread(target=accept, daemon=True).start()
    try:
        yield ""
    finally:
        # close() alone would not wake the thread that waits in accept()
        with suppress(OSError):
            server.shutdown(SHUT_RDWR)
        server.close()


def call(address: str) -> socket:
    """Returns a connection to an address; what takes longer than some seconds there fails."""
    host, _, port = address.rpartition(":")
    return connect_to(host, int(port), _CONNECT_SECONDS, only_first=True)


def answers(address: str) -> bool:
    """Whether a process listens at an address."""
    with suppress(OSError), call(address):
        return True
    return False


def tasks_to_ask(rank: int, tasks: Sequence[Task]) -> list[Task]:
    """Returns those of some tasks that one of them asks: all others.

    Of more than 64, it asks the first task, and those at the distances 1, 2, 4, …
    """
    number = len(tasks)
    place = [task.rank for task in tasks].index(rank)
    asked: Collection[int] = range(number)
    if number > 64:
        asked = {0, *((place + 2**bit) % number for bit in range(number.bit_length()))}
    return [tasks[position] for position in asked if position != place]


def find_unreached(asked: Sequence[Task], serving: Collection[int] = ()) -> dict[int, str]:
    """Asks some tasks for their ranks, and returns why it did not get them, by rank.

    A server of TensorFlow listens, or soon will, at the ports of the ranks that are `serving`.
    """

    def problem(task: Task) -> str:
        try:
            with call(task.address) as sock, sock.makefile("rb") as lines:
                if task.rank in serving:
                    return ""
                answer = lines.readline(100).strip()
                if answer != b"%d" % task.rank:
                    return f"another process answers there: {answer!r}"
                try:
                    lines.read(len(_PADDING))
                except timeout:  # the TimeoutError of Python 3.9 is another one
                    return (
                        "it answers, but full packets do not arrive: an interface has a larger MTU "
                        "than the network (ip link)"
                    )
        except OSError as error:
            return str(error)
        return ""

    # All at the same time: each question whose packets are dropped takes its full timeout.
    with ThreadPoolExecutor(max(1, len(asked))) as pool:
        return {task.rank: text for task, text in zip(asked, pool.map(problem, asked)) if text}
