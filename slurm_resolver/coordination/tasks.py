"""The tasks as the service knows them: which process represents each, and how it has ended."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_resolver.coordination import NameOf, ServiceAddress
from slurm_resolver.coordination.silence import Clock
from slurm_resolver.coordination.wire import Message, encode
from slurm_resolver.wording import shorten

if TYPE_CHECKING:  # asyncio takes long to import
    from asyncio import StreamWriter, Task


@dataclass
class Link:
    """A process that represents a task, and its connection."""

    rank: int
    process: str  # its id, and a random number
    writer: StreamWriter | None = None  # None while the connection has failed
    loss: Task[None] | None = None  # makes the process lost after that
    heard_at: float = 0.0  # when the last message came, by the clock

    def close(self) -> None:
        """Closes the connection."""
        if self.writer:
            self.writer.close()
        self.writer = None


class Tasks:
    """All tasks, by rank.

    Attributes:
        links: of the tasks whose processes have come, and have not ended.
        endings: how the processes of the others have ended.
        name_of: returns how messages name a rank.
        clock: by which tasks are silent.
    """

    def __init__(self, address: ServiceAddress, name_of: NameOf) -> None:
        self.address = address
        self.name_of = name_of
        self.links: dict[int, Link] = {}
        self.endings: dict[int, str] = {}
        self.clock = Clock()

    def send(self, ranks: Container[int] | None, message: Message) -> None:
        """Sends a message to the processes of these tasks; None for all tasks."""
        line = encode(message)
        # The service's own task comes last: TensorFlow may start there once it has the message, and
        # holds the interpreter, in which the service waits, until all other tasks have come.
        for rank in sorted(self.links, key=self.address.rank.__eq__):
            link = self.links[rank]
            if link.writer and (ranks is None or rank in ranks) and not link.writer.is_closing():
                link.writer.write(line)

    def connected(self, ranks: Iterable[int]) -> set[int]:
        """Returns those whose processes have a connection now."""
        return {rank for rank in ranks if rank in self.links and self.links[rank].writer}

    def silent_for(self, seconds: float) -> list[int]:
        """Returns those that are connected, but have sent nothing for longer than this."""
        until = self.clock.now - seconds
        return [rank for rank, link in self.links.items() if link.writer and link.heard_at < until]

    def names(self, ranks: Iterable[int], most: int = 5) -> str:
        """Returns how messages name some tasks."""
        return shorten([*map(self.name_of, sorted(ranks))], most)
