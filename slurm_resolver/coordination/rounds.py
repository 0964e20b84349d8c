"""The gathers of the tasks: in a round every task gives one value, and gets those of all.

A round ends when all have come, when the time of the first task is up, or when one that had come
ends. Its answer goes to every task, also to one that comes later or asks again.
"""

from __future__ import annotations

import time
from typing import Callable, Container, Dict, List, Optional, Set, Tuple

from slurm_resolver.coordination import NameOf
from slurm_resolver.coordination.wire import Message, Process, pack

_FIRST_NOTICE, _NEXT_NOTICES = 30.0, 60.0  # seconds until the missing tasks are reported
_MOST_NAMES = 10  # tasks that a message names


class Round:
    """One round: which tasks have come, and its answer."""

    def __init__(self, purpose: str) -> None:
        self.purpose = purpose
        self.values: Dict[int, str] = {}
        self.numbers: Dict[int, str] = {}  # of the processes, by rank
        self.waiting: Set[int] = set()  # the ranks that wait for the answer
        self.without: Set[int] = set()  # the ranks that do not take part
        self.patient = False  # whether it has no deadline, and ends when a task leaves
        self.began = time.monotonic()
        self.deadline = self.seconds = float("inf")
        self.next_notice = self.began + _FIRST_NOTICE
        self.answer: Optional[Message] = None
        self.late_answer: Optional[Message] = None  # for those that the others waited for in vain


class Rounds:
    """All rounds of a step, by their names."""

    def __init__(
        self, num_tasks: int, send: Callable[[Container[int], Message], None], name_of: NameOf
    ) -> None:
        """Takes the number of tasks, how to send some of them a message, and their names."""
        self._num_tasks, self._send, self._name_of = num_tasks, send, name_of
        self._rounds: Dict[str, Round] = {}
        self._endings: Dict[int, str] = {}  # how the last process of a task ended, by rank
        self._left: Set[int] = set()  # the ranks whose program has ended

    def add(self, process: Process, message: Message) -> None:
        """Takes the value of a task: ``{"gather": name, "value": JSON, "seconds": 60, …}``."""
        rank, number = process.rank, process.number
        name = str(message["gather"])
        current = self._rounds.get(name)
        is_over = current is not None and current.answer is not None
        # Another process of this task took part in that round: this one begins the next.
        if current is None or (is_over and current.numbers.get(rank, number) != number):
            current = self._rounds[name] = Round(name.rpartition(" ")[0])
        if current.answer is not None:
            late = current.late_answer if rank in self._missing(current) else None
            self._send([rank], {**(late or current.answer), "gathered": name})
            return
        current.values[rank], current.numbers[rank] = str(message["value"]), number
        self._endings.pop(rank, None)
        self._left.discard(rank)
        if message["seconds"] is not None:
            now, seconds = time.monotonic(), float(message["seconds"])
            if now + seconds < current.deadline:
                current.deadline, current.seconds = now + seconds, float(message["timeout"])
            current.waiting.add(rank)
            current.without = set(message["without"])
            current.patient = current.patient or bool(message["patient"])
        left = self._left - current.values.keys() - current.without
        if current.patient and left:
            self._end_without(name, min(left))
            return
        # Counted first, as this is asked for every task.
        enough = len(current.values) + len(current.without) >= self._num_tasks
        if current.waiting and enough and not self._missing(current):
            values = [current.values.get(each, "null") for each in range(self._num_tasks)]
            self._end(name, {"values": pack(values)})

    def received(self, rank: int, name: str) -> None:
        """Notes that a task has received the answer of a round."""
        if name in self._rounds:
            self._rounds[name].waiting.discard(rank)

    @property
    def owes(self) -> bool:
        """Whether there are tasks that have not received an answer yet."""
        return any(one.answer is not None and one.waiting for one in self._rounds.values())

    def disconnected(self, process: Process) -> None:
        """Waits once more for a process: it gives its values again if it returns."""
        for current in self._rounds.values():
            if current.answer is None and current.numbers.get(process.rank) == process.number:
                current.values.pop(process.rank, None)

    def ended(self, process: Process, ending: str, failed: bool) -> None:
        """Ends the rounds in which an ended process takes part, and those that wait for it only."""
        rank = process.rank
        self._endings[rank] = ending
        if process.role == "program":
            self._left.add(rank)
        for name, current in self._rounds.items():
            if current.answer is not None or process.role != "program":
                current.waiting.discard(rank)
                continue
            awaited = current.patient and rank in self._missing(current)
            if current.numbers.get(rank) == process.number or awaited:
                self._end_without(name, rank)
            elif failed and current.waiting:
                self._notify(current)

    def tick(self, now: float) -> None:
        """Ends the rounds whose time is up, and has one task report who is missing."""
        for name, current in self._rounds.items():
            if current.answer is not None:
                continue
            if now >= current.deadline:
                count, names = self._describe_missing(current)
                error = (
                    f"{count} did not come to {current.purpose} within {current.seconds:.3g} s: "
                    f"{names}. Look at their output, and check that all tasks run the same program."
                )
                late = f"the other tasks had stopped waiting for {count} when this one came"
                current.late_answer = {"error": f"{late}: {names}."}
                self._end(name, {"error": error})
            elif now >= current.next_notice and current.waiting and not current.patient:
                current.next_notice += _NEXT_NOTICES
                self._notify(current)

    def _notify(self, current: Round) -> None:
        count, names = self._describe_missing(current)
        waited = time.monotonic() - current.began
        text = f"waiting for {count} since {waited:.0f} s: {names}"
        self._send([min(current.waiting)], {"notice": text})

    def _describe_missing(self, current: Round) -> Tuple[str, str]:
        """Returns how many tasks are missing, and which."""
        missing, names = self._missing(current), []
        for rank in missing[:_MOST_NAMES]:
            ending = f" ({self._endings[rank]})" if rank in self._endings else ""
            names.append(f"{self._name_of(rank)}{ending}")
        more = len(missing) - len(names)
        shown = ", ".join(names) + (f" and {more} more" if more else "")
        return f"{len(missing)} of {self._num_tasks} tasks", shown

    def _missing(self, current: Round) -> List[int]:
        known = current.values.keys() | current.without
        return [rank for rank in range(self._num_tasks) if rank not in known]

    def _end_without(self, name: str, rank: int) -> None:
        part = f"takes no part in {self._rounds[name].purpose}: {self._endings[rank]}"
        self._end(name, {"error": f"{self._name_of(rank)} is gone, and {part}."})

    def _end(self, name: str, answer: Message) -> None:
        current = self._rounds[name]
        current.answer = answer
        self._send(current.waiting, {**answer, "gathered": name})
