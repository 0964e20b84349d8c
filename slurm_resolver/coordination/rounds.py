"""The gathers of the tasks: in a round, every task gives one value and gets the values of all.

A round ends when all have come, when the time of the first task is up, or when a task that has come
ends. Every task gets the answer, including those that come later or ask again.

| a task | what it does in a round |
|---|---|
| waits | gives its value, and needs the answer |
| offers | gives its value only |
| waits patiently | has no deadline: the round also ends when a missing task leaves |
"""

from __future__ import annotations

import asyncio
from time import monotonic

from slurm_resolver.coordination import NameOf, ServiceAddress
from slurm_resolver.coordination.wire import Gather, Message, Process, Send, TextByRank, pack
from slurm_resolver.wording import brief, shorten

# seconds until the missing tasks are reported
_FIRST_NOTICE = 30.0
_NEXT_NOTICES = 60.0
_PATIENT_NOTICE = 0.5  # seconds until all tasks learn that some wait patiently
_MOST_NAMES = 10  # tasks that a message names


class Round:
    """One round: which tasks have come, and its answer."""

    # whether it has no deadline, and ends when a task leaves
    patient = False
    # whether it has ended because its time was up
    is_expired = False

    def __init__(self, gather: Gather) -> None:
        self.gather = gather
        self.values: TextByRank = {}
        # the random numbers of the processes that have given a value; see `wire.Process`
        self.numbers: TextByRank = {}
        # the ranks that wait for the answer, or have not confirmed it
        self.waiting: set[int] = set()
        self.began = monotonic()
        # when one of the waiting tasks reports which ones are missing
        self.next_notice = self.began + _FIRST_NOTICE
        # empty until the round has ended
        self.answer: Message = {}


class Rounds:
    """All rounds of a step; it runs in the service's thread."""

    def __init__(self, address: ServiceAddress, send: Send, name_of: NameOf) -> None:
        self._num_tasks = address.num_tasks
        self._address = address
        # the ranks whose processes may not find the service
        self.never_connected = set(range(address.num_tasks))
        self._send = send
        self._name_of = name_of
        self._rounds: dict[Gather, Round] = {}
        self._endings: TextByRank = {}  # how the last process of a task ended
        self._left: set[int] = set()  # the ranks whose program has ended

    def message(self, process: Process, message: Message) -> None:
        """Takes the value of a task, or that it has received an answer."""
        rank = process.rank
        if "received" in message:
            received = self._rounds.get(Gather(*message["received"]))
            if received:
                received.waiting.discard(rank)
            return
        gather = Gather(*message["gather"])
        current = self._rounds.setdefault(gather, Round(gather))
        # Another process of this task took part in that round: this one begins the next.
        if current.answer and current.numbers.get(rank, process.number) != process.number:
            current = self._rounds[gather] = Round(gather)
        if current.answer:
            answer = current.answer
            if current.is_expired and rank not in current.values:
                answer = {**answer, "error": f"this task came too late: {answer['error']}"}
            self._send([rank], answer)
            return
        current.values[rank] = str(message["value"])
        current.numbers[rank] = process.number
        self._endings.pop(rank, None)
        self._left.discard(rank)
        if "seconds" in message:  # else it does not wait
            self._await_answer(current, rank, message)
        if current.waiting and len(current.values) == self._num_tasks:
            by_rank = [text for _, text in sorted(current.values.items())]
            self._end(current, values=pack(by_rank))
            # All tasks are beyond the round before, which nobody will ask for again.
            self._rounds.pop(gather._replace(round=gather.round - 1), None)

    def _await_answer(self, current: Round, rank: int, message: Message) -> None:
        """Notes that a task waits for the answer, and for how long."""
        current.waiting.add(rank)
        for other in message["without"]:  # it does not take part
            current.values.setdefault(other, "null")
        timeout = message["timeout"]
        if timeout is not None:
            asyncio.get_running_loop().call_later(
                message["seconds"], self._expire, current, timeout
            )
        elif not current.patient:
            current.patient = True
            current.next_notice = monotonic() + _PATIENT_NOTICE

    @property
    def owes(self) -> bool:
        """Whether some tasks have not received an answer yet."""
        return any(one.answer and one.waiting for one in self._rounds.values())

    def disconnected(self, process: Process) -> None:
        """Forgets the values of a process, which gives them again if it returns."""
        for current in self._rounds.values():
            if not current.answer and current.numbers.get(process.rank) == process.number:
                current.values.pop(process.rank, None)

    def ended(self, process: Process, failure: str, said_goodbye: bool) -> None:
        """Ends the rounds in which an ended process takes part."""
        rank = process.rank
        is_program = process.role == "program"
        self._endings[rank] = failure or "it has ended"
        if failure and said_goodbye:
            self._endings[rank] = f"its process ended: {failure}"
        if is_program:
            self._left.add(rank)
        for current in self._rounds.values():
            if current.answer or not is_program:
                current.waiting.discard(rank)
            elif current.numbers.get(rank) == process.number:
                self._end_without(current, rank)
            elif failure and current.waiting:
                current.next_notice = 0.0

    def tick(self, now: float) -> None:
        """Lets one task report which are missing.

        A patient round ends if a missing task has ended; before, all tasks are told who waits: some
        may have left it out.
        """
        for current in self._rounds.values():
            if current.answer:
                continue
            waiting = current.waiting & current.values.keys()
            left = self._left.difference(current.values)
            if current.patient and left:
                self._end_without(current, min(left))
            elif now >= current.next_notice and waiting:
                current.next_notice = now + _NEXT_NOTICES
                rank = min(waiting)
                if current.patient:
                    self._send(
                        None,
                        {
                            "awaited": current.gather,
                            "rank": rank,
                            "value": current.values[rank],
                        },
                    )
                else:
                    count, names = self._describe_missing(current)
                    notice = f"has waited {now - current.began:.0f} s for {count}: {names}"
                    self._send([rank], {"notice": notice})

    def _expire(self, current: Round, timeout: float) -> None:
        """Ends a round whose first task has waited for its `timeout`."""
        if not current.answer:
            current.is_expired = True
            count, names = self._describe_missing(current)
            remedy = ""
            if self._address.remedy and self.never_connected.difference(current.values):
                remedy = f", and reach {self._address.name}{self._address.remedy}"
            self._end(
                current,
                error=f"{count} did not reach {current.gather.purpose} within {brief(timeout)} "
                f"s: {names}. Look at their output, and check that all tasks run the same program"
                f"{remedy}.",
            )

    def _describe_missing(self, current: Round) -> tuple[str, str]:
        """Returns how many tasks are missing, and which."""
        names = []
        for rank in range(self._num_tasks):
            if rank not in current.values:
                ending = f" ({self._endings[rank]})" if rank in self._endings else ""
                names.append(f"{self._name_of(rank)}{ending}")
        return f"{len(names)} of {self._num_tasks} tasks", shorten(names, _MOST_NAMES)

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
