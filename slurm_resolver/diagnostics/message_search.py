"""Searches a start's log for known messages, in one pass.

A log may be long, and contain progress bars and bytes that are not text. The time grows linearly
with its size, and the memory with the number of findings.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from slurm_resolver.diagnostics.known_messages import FAULTS, MESSAGES, KnownMessage


@dataclass(frozen=True)
class Finding:
    """A known message in a log.

    Attributes:
        file: the name of the log.
        known: the message, with its cause and remedy.
        line_number: the number of its first line.
        line: that line.
        address: the task in the message: `host:port`, `/job:worker/replica:0/task:3`, or srun's
            `n10: task 1`.
        count: the number of lines with this message and address.
    """

    file: str
    known: KnownMessage
    line_number: int
    line: str
    address: str | None
    count: int


_CUES = [(cue, known) for known in MESSAGES.values() for cue in known.cues.split("|") if cue]
_SETTLED = [known for known in MESSAGES.values() if known.settled]
_SHOWN_LENGTH = 200
_ADDRESS = re.compile(
    r"/job:(?P<job>\w{1,40})(?:/replica:\d{1,9})?/task:(?P<task>\d{1,9})"
    r"|ipv[46]:(?P<peer>(?:[\d.]{7,15}|(?:%5B|\[)[\w:.%]{2,60}?(?:%5D|\])):\d{1,5})"
    r'|"target_address":"(?P<target>[\w.:\[\]-]{3,255})"'
)
# TensorFlow prints this in a task that ends some time after the first task, which runs the
# coordination service. If that aborted an operation, further lines say so.
_END_NOISE = re.compile(
    r"BaseCollectiveExecutor::StartAbort UNAVAILABLE: (?!Error reported from)"
    r"|^ *(?:\d{1,7}: ?)?(?:Additional GRPC error information|:UNKNOWN:Error received) from "
)
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class MessageReader:
    """Finds the known messages of one start.

    Attributes:
        file: the name of the log, for the findings.
        found: the number of the first line, and the line, by id and address.
        last_fault: the number of the last line with a cause or an effect.
    """

    last_fault = 0

    def __init__(self, file: str = "") -> None:
        self.file = file
        self.found: dict[tuple[str, str | None], tuple[int, str]] = {}
        self._counts: Counter[tuple[str, str | None]] = Counter()  # of lines
        self._significant: set[str] = set()  # the ids with a line that is not _END_NOISE
        self._settled: set[str] = set()  # the ids of messages that a later line settles

    def read(self, text: str, number: int) -> None:
        """Reads a line, or a piece of it; `number` is the line's."""
        # A carriage return, as in a progress bar, separates texts like the end of a line.
        for part in text.split("\r"):
            settled, known, match = search(part)
            self._settled.update(settled)
            if known and match:
                key = known.id, _named_task(match)
                self.found.setdefault(key, (number, _shorten(part, match.start())))
                self._counts[key] += 1
                if known.kind in FAULTS:
                    self.last_fault = number
                if known.becomes == "settled":  # it is no longer settled
                    self._settled.discard(known.id)
                if not _END_NOISE.search(part):
                    self._significant.add(known.id)

    @property
    def continues(self) -> bool:
        """Whether the job is to start again, although nothing has failed."""
        return any(id in ("saved", "preempted", "requeued", "node-failed") for id, _ in self.found)

    def findings(self) -> list[Finding]:
        """Returns the messages, without those that others explain."""
        meanings = {id: MESSAGES[id] for id, _ in self.found}
        for id in self._settled & meanings.keys():
            meanings[id] = MESSAGES[meanings[id].becomes]
        hidden = " ".join(known.hides for known in meanings.values()).split()
        shown = {
            id: known
            for id, known in meanings.items()
            if known.id not in hidden and known.kind not in hidden
        }
        if self._significant.isdisjoint(shown):
            return []
        return [
            Finding(self.file, shown[id], number, line, address, self._counts[id, address])
            for (id, address), (number, line) in self.found.items()
            if id in shown
        ]


def search(text: str) -> tuple[list[str], KnownMessage | None, re.Match[str] | None]:
    """Returns the ids of the messages that a text settles, and the one in it with its match."""
    # `re` compiles a pattern when it is first used.
    knowns = [known for cue, known in _CUES if cue in text]
    settled = [known.id for known in _SETTLED if knowns and re.search(known.settled, text)]
    if not text.startswith("slurm-resolver supervise: "):  # it repeats the error of a task
        for known in knowns:
            match = re.search(known.pattern, text)
            if match:
                return settled, known, match
    return settled, None, None


def _named_task(match: re.Match[str]) -> str | None:
    """Returns the task in the match, or else the last one near it in the line."""
    named = match.groupdict().get("address")
    if named:
        return printable(named)
    near = [*_ADDRESS.finditer(match.string, max(0, match.start() - 300), match.end() + 500)]
    if not near:
        return None
    found = near[-1]
    if found["job"]:
        return f"/job:{found['job']}/replica:0/task:{found['task']}"
    return (found["peer"] or found["target"]).replace("%5B", "[").replace("%5D", "]")


def _shorten(text: str, start: int) -> str:
    """Returns the part of the line around the message, without control characters."""
    first = start - 40 if start > _SHOWN_LENGTH // 2 else 0
    return printable(text[first : first + _SHOWN_LENGTH])


def printable(text: str) -> str:
    """Returns the text without control characters, which could change the terminal."""
    return _CONTROL_CHARACTERS.sub(" ", text).strip()
