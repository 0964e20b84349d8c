"""The gathers of the tasks: in a round every task gives one value, and gets those of all.

A round ends when all have come, when the time of the first task is up, or when one that had come
ends. Its answer goes to every task, also to one that comes later or asks again.
"""

from __future__ import annotations

import time
from typing import Callable, Container, Dict, List, Optional, Set

from slurm_resolver.coordination.wire import Message, Process, pack

_FIRST_NOTICE, _NEXT_NOTICES = 30.0, 60.0  # seconds until the missing tasks are reported
_LONGEST = 1e6  # seconds


class Round:
    """One round: who has come, and what came of it."""

    def __init__(self) -> None:
        self.values: Dict[int, str] = {}
        self.numbers: Dict[int, str] = {}  # of the processes, by rank
        self.waiting: Set[int] = set()  # the ranks that wait for the answer
        self.without: Set[int] = set()  # the ranks that do not take part
        self.patient = False  # whether it has no deadline, and ends when a task leaves
        self.began = time.monotonic()
        self.deadline = float("inf")
        self.next_notice = self.began + _FIRST_NOTICE
        self.answer: Optional[Message] = None
        self.informed: Set[int] = set()  # the ranks that have the answer


class Rounds:
    """All rounds of a step, by their names."""

    def __init__(self, num_tasks: int, send: Callable[[Container[int], Message], None]) -> None:
        """Takes the number of tasks, and how to send some of them a message."""
        self._num_tasks, self._send = num_tasks, send
        self._rounds: Dict[str, Round] = {}
        self._endings: Dict[int, str] = {}  # how the last process of a task ended, by rank

    def add(self, process: Process, message: Message) -> None:
        """Takes the value of a task: ``{"gather": name, "value": JSON, "seconds": 60}``."""
        rank, number = process.rank, process.number
        name, value = str(message["gather"]), str(message["value"])
        waits = message["seconds"] is not None
        current = self._rounds.get(name)
        if current is None or (current.answer is not None and self._is_next(current, rank, number)):
            current = self._rounds[name] = Round()
        if current.answer is None:
            current.values[rank], current.numbers[rank] = value, number
            self._endings.pop(rank, None)
            if waits:
                seconds = min(float(message["seconds"]), _LONGEST)
                current.deadline = min(current.deadline, time.monotonic() + seconds)
                current.waiting.add(rank)
                current.without = set(message["without"])
                current.patient = current.patient or bool(message["patient"])
            if current.waiting and self._is_complete(current):
                values = [current.values.get(each, "null") for each in range(self._num_tasks)]
                self._end(name, {"values": pack(values)})
        else:
            self._send([rank], {**current.answer, "gathered": name})

    @staticmethod
    def _is_next(current: Round, rank: int, number: str) -> bool:
        """Whether a process begins the next round, as another took its task's part in this one."""
        return current.numbers.get(rank, number) != number

    def received(self, rank: int, name: str) -> None:
        """Notes that a task has received the answer of a round."""
        if name in self._rounds:
            self._rounds[name].waiting.discard(rank)
            self._rounds[name].informed.add(rank)

    @property
    def owes(self) -> bool:
        """Whether there are tasks that have not received an answer yet."""
        return any(one.answer is not None and one.waiting for one in self._rounds.values())

    @property
    def has_failed_without_some(self) -> bool:
        """Whether a round has failed that some tasks may still come to."""
        return any(
            one.answer is not None
            and "values" not in one.answer
            and len(one.informed | one.without | self._endings.keys()) < self._num_tasks
            for one in self._rounds.values()
        )

    def disconnected(self, process: Process) -> None:
        """Waits once more for a process: it gives its values again if it returns."""
        for current in self._rounds.values():
            if current.answer is None and current.numbers.get(process.rank) == process.number:
                current.values.pop(process.rank, None)

    def ended(self, process: Process, ending: str, failed: bool) -> None:
        """Ends the rounds in which an ended process takes part, and those that wait for it only."""
        rank = process.rank
        self._endings[rank] = ending
        for name, current in self._rounds.items():
            if current.answer is not None or process.role != "program":
                current.waiting.discard(rank)
                continue
            awaited = current.patient and rank in self._missing(current)
            if current.numbers.get(rank) == process.number or awaited:
                self._end(name, {"lost": rank, "why": ending})
            elif failed and current.waiting:
                self._notify(name, current)

    def tick(self, now: float) -> None:
        """Ends the rounds whose time is up, and has one task report who is missing."""
        for name, current in self._rounds.items():
            if current.answer is not None:
                continue
            if now >= current.deadline:
                self._end(name, {"missing": self._missing(current), "endings": self._endings})
            elif now >= current.next_notice and current.waiting and not current.patient:
                current.next_notice += _NEXT_NOTICES
                self._notify(name, current)

    def _notify(self, name: str, current: Round) -> None:
        waited = time.monotonic() - current.began
        notice = {"waiting": name, "missing": self._missing(current), "waited": waited}
        self._send([min(current.waiting)], {**notice, "endings": self._endings})

    def _is_complete(self, current: Round) -> bool:
        # Counted, as it is asked for every task.
        enough = len(current.values) + len(current.without) >= self._num_tasks
        return enough and not self._missing(current)

    def _missing(self, current: Round) -> List[int]:
        known = current.values.keys() | current.without
        return [rank for rank in range(self._num_tasks) if rank not in known]

    def _end(self, name: str, answer: Message) -> None:
        current = self._rounds[name]
        current.answer = answer
        self._send(current.waiting, {**answer, "gathered": name})
