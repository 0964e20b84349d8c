"""The gathers of the tasks: in a round, every task gives one value and gets the values of all.

A round ends when all have come, when the time of a task is up, or when a task that has come ends.
Every task gets the answer, including those that come later or ask again.

| a task | what it does in a round |
|---|---|
| waits | gives its value, and needs the answer |
| offers | gives its value only |
| waits patiently | has no deadline: the round also ends when a missing task leaves |
"""

from __future__ import annotations

from math import inf
from time import monotonic

from slurm_resolver.coordination import NameOf, ServiceAddress
from slurm_resolver.coordination.wire import Gather, Message, Process, Send, TextByRank, pack
from slurm_resolver.log import warn
from slurm_resolver.timeouts import Timeouts
from slurm_resolver.wording import brief, shorten

# seconds until all tasks learn that some wait patiently
_FIRST_PATIENT_NOTICE = 0.5
_NEXT_PATIENT_NOTICES = 5.0
_MOST_NAMES = 10  # tasks that a message names


class Round:
    """One round: which tasks have come, and its answer."""

    # when the first time of a task is up, and how many seconds it waits; without end if patient
    deadline = inf
    timeout = inf
    # when the missing tasks are reported
    next_notice = inf

    def __init__(self, gather: Gather) -> None:
        self.gather = gather
        self.values: TextByRank = {}
        # the processes that have given a value, by rank
        self.processes: dict[int, Process] = {}
        # the ranks that wait for the answer
        self.waiting: set[int] = set()
        self.began = monotonic()
        # empty until the round has ended
        self.answer: Message = {}


class Rounds:
    """All rounds of a step; it runs in the service's thread."""

    def __init__(self, address: ServiceAddress, send: Send, name_of: NameOf) -> None:
        self._address = address
        self._send = send
        self._name_of = name_of
        self._rounds: dict[Gather, Round] = {}
        self._endings: TextByRank = {}  # how the last process of a task ended

    def message(self, process: Process, message: Message) -> None:
        """Takes the value of a task."""
        rank = process.rank
        gather = Gather(*message["gather"])
        current = self._rounds.setdefault(gather, Round(gather))
        # Another process of this task took part in that round: this one begins the next.
        if current.answer and current.processes.get(rank, process) != process:
            current = self._rounds[gather] = Round(gather)
        if current.answer:
            answer = current.answer
            if "error" in answer and rank not in current.values:
                answer = {**answer, "error": f"this task came too late: {answer['error']}"}
            self._send([rank], answer)
            return
        current.values[rank] = message["value"]
        current.processes[rank] = process
        self._endings.pop(rank, None)
        if "seconds" in message:  # else it does not wait
            self._await_answer(current, rank, message)
        if current.waiting and len(current.values) == self._address.num_tasks:
            self._end(current, values=pack(text for _, text in sorted(current.values.items())))
            # All tasks are beyond the round before, which nobody will ask for again.
            self._rounds.pop(gather._replace(round=gather.round - 1), None)

    def _await_answer(self, current: Round, rank: int, message: Message) -> None:
        """Notes that a task waits for the answer, and for how long."""
        for other in message["without"]:  # it does not take part
            current.values.setdefault(other, "null")
        deadline = monotonic() + message["seconds"]
        if deadline < current.deadline:
            current.deadline = deadline
            current.timeout = message["timeout"]
        if not current.waiting:
            current.next_notice = monotonic() + (
                _FIRST_PATIENT_NOTICE if deadline == inf else Timeouts.first_notice
            )
        current.waiting.add(rank)

    def disconnected(self, process: Process) -> None:
        """Forgets the values of a process, which gives them again if it returns."""
        for current in self._unanswered():
            if current.processes.get(process.rank) == process:
                current.values.pop(process.rank, None)

    def ended(self, process: Process, failure: str) -> None:
        """Ends the rounds in which an ended process takes part."""
        rank = process.rank
        self._endings[rank] = failure or "it has ended"
        for current in self._unanswered():
            if current.processes.get(rank) == process:
                self._end_without(current, rank)
            elif failure:
                current.next_notice = 0.0

    def end_without(self, rank: int) -> None:
        """Ends all rounds, as this task has ended and no other process will follow."""
        for current in self._unanswered():
            self._end_without(current, rank)

    def _unanswered(self) -> list[Round]:
        return [current for current in self._rounds.values() if not current.answer]

    def tick(self, now: float) -> None:
        """Ends rounds whose time is up, and reports which tasks are missing.

        A patient round ends if a missing task has ended; before, all tasks are told who waits: some
        may have left it out.
        """
        for current in self._unanswered():
            waiting = current.waiting & current.values.keys()
            if not waiting:
                continue
            is_patient = current.timeout == inf
            gone = self._endings.keys() - current.values.keys()
            if is_patient and gone:
                self._end_without(current, min(gone))
            elif now >= current.deadline:
                self._end_late(current)
            elif now >= current.next_notice:
                current.next_notice = now + Timeouts.next_notices
                if is_patient:
                    current.next_notice = now + _NEXT_PATIENT_NOTICES
                    rank = min(waiting)
                    self._send(
                        None,
                        {
                            "awaited": current.gather,
                            "rank": rank,
                            "value": current.values[rank],
                        },
                    )
                else:
                    count, names = self._find_missing(current)
                    warn("has waited %.0f s for %s: %s", now - current.began, count, names)

    def _find_missing(self, current: Round) -> tuple[str, str]:
        """Returns how many tasks are missing, and which."""
        names = []
        for rank in range(self._address.num_tasks):
            if rank not in current.values:
                ending = self._endings.get(rank, "")
                names.append(f"{self._name_of(rank)}{ending and f' ({ending})'}")
        return f"{len(names)} of {self._address.num_tasks} tasks", shorten(names, _MOST_NAMES)

    def _end_late(self, current: Round) -> None:
        """Ends a round because the time of a task is up."""
        count, names = self._find_missing(current)
        self._end(
            current,
            error=f"{count} did not reach {current.gather.purpose} within "
            f"{brief(current.timeout)} s: {names}. Look at their output, and check that all tasks "
            f"run the same program, and reach {self._address.name}{self._address.remedy}.",
        )

    def _end_without(self, current: Round, rank: int) -> None:
        """Ends a round because this task has ended."""
        self._end(
            current,
            error=f"{self._name_of(rank)} is gone, and cannot take part in "
            f"{current.gather.purpose}: {self._endings[rank]}.",
        )

    def _end(self, current: Round, **answer: str) -> None:
        """Ends a round, with the values of all tasks or an error."""
        current.answer = {**answer, "gathered": current.gather}
        self._send(current.waiting, current.answer)
