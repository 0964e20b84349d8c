"""The gathers of the tasks: in a round, every task gives one value and gets the values of all.

A round ends when all have come, when the time of a task is up, or when a task has ended that takes
part in it. Every task gets the answer, including those that come later or ask again.

| a task | what it does in a round |
|---|---|
| waits | gives its value, and needs the answer |
| offers | gives its value only |
| waits patiently | waits without a deadline: all tasks are told, as some may have left it out |
"""

from __future__ import annotations

from math import inf
from time import monotonic

from slurm_resolver.coordination.tasks import Tasks
from slurm_resolver.coordination.wire import Gather, Message, pack
from slurm_resolver.log import warn
from slurm_resolver.timeouts import Timeouts
from slurm_resolver.wording import brief

# seconds until all tasks learn that some wait patiently
_FIRST_PATIENT_NOTICE = 0.5
_NEXT_PATIENT_NOTICES = 5.0
_MOST_NAMES = 10  # tasks that a message names


class Round:
    """One round: which tasks have come, and its answer."""

    is_patient = False
    # when the missing tasks are reported
    next_notice = inf

    def __init__(self, gather: Gather) -> None:
        self.gather = gather
        # JSON texts, by rank
        self.values: dict[int, str] = {}
        # the ranks that take no part, and those that wait for the answer
        self.without: set[int] = set()
        self.waiting: set[int] = set()
        self.began = monotonic()
        # empty until the round has ended
        self.answer: Message = {}


class Rounds:
    """All rounds of a step; it runs in the service's thread."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._ranks = range(tasks.address.num_tasks)
        self._rounds: dict[Gather, Round] = {}

    def message(self, rank: int, message: Message) -> None:
        """Takes the value of a task, or the end of its time."""
        gather = Gather(*message["gather"])
        current = self._rounds.setdefault(gather, Round(gather))
        if current.answer:
            self._tasks.send([rank], current.answer)
            return
        if "late" in message:
            missing = self._missing(current)
            service = self._tasks.address
            self._end(
                current,
                error=f"{len(missing)} of {len(self._ranks)} tasks did not reach {gather.purpose} "
                f"within {brief(message['late'])} s: {self._tasks.names(missing, _MOST_NAMES)}. "
                "Look at their output, and check that all tasks run the same program, and reach "
                f"{service.name}{service.remedy}.",
            )
            return
        current.values[rank] = message["value"]
        if "without" in message:  # it waits
            current.without.update(message["without"])
            current.waiting.add(rank)
            if current.next_notice == inf:
                current.is_patient = message["patient"]
                current.next_notice = monotonic() + (
                    _FIRST_PATIENT_NOTICE if current.is_patient else Timeouts.first_notice
                )
        self._end_if_decided(current)

    def _end_if_decided(self, current: Round) -> None:
        """Ends a round, for which some wait, if all have come or one of them has ended."""
        gather = current.gather
        gone = self._tasks.endings.keys() - current.without
        # In a large step, it takes long to find out who is missing.
        have_come = len(current.values) + len(current.without) >= len(self._ranks)
        if current.waiting and gone:
            rank = min(gone)
            self._end(
                current,
                error=f"{self._tasks.name_of(rank)} is gone, and cannot take part in "
                f"{gather.purpose}: {self._tasks.endings[rank]}.",
            )
        elif current.waiting and have_come and not self._missing(current):
            values = (current.values.get(rank, "null") for rank in self._ranks)
            self._end(current, values=pack(values))
            # All tasks are beyond the round before, which nobody will ask for again.
            self._rounds.pop(gather._replace(round=gather.round - 1), None)

    def ended(self) -> None:
        """Ends the rounds in which a task takes part that has ended."""
        for current in [*self._rounds.values()]:
            if not current.answer:
                self._end_if_decided(current)

    def tick(self) -> None:
        """Reports which tasks are missing; of a patient round, tells all tasks who waits."""
        now = monotonic()
        for current in self._rounds.values():
            if current.answer or now < current.next_notice:
                continue
            waiting = self._tasks.connected(current.waiting)
            if not waiting:
                continue
            if current.is_patient:
                current.next_notice = now + _NEXT_PATIENT_NOTICES
                value = current.values[min(waiting)]
                self._tasks.send(None, {"awaited": current.gather, "value": value})
            else:
                current.next_notice = now + Timeouts.next_notices
                missing = self._missing(current)
                warn(
                    "has waited %.0f s for %d of %d tasks: %s",
                    now - current.began,
                    len(missing),
                    len(self._ranks),
                    self._tasks.names(missing, _MOST_NAMES),
                )

    def _missing(self, current: Round) -> set[int]:
        """Returns the ranks that have not come, or whose connections have failed."""
        return {*self._ranks} - current.without - self._tasks.connected(current.values)

    def _end(self, current: Round, **answer: str) -> None:
        """Ends a round, with the values of all tasks or an error."""
        current.answer = {**answer, "gathered": current.gather}
        self._tasks.send(current.waiting, current.answer)
