"""Searches a start's log for known messages, in one pass.

A log may be long, and contain progress bars and bytes that are not text. The time grows linearly
with its size, and the memory with the number of findings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_resolver.diagnostics.known_messages import FAULTS, MESSAGES, KnownMessage

Hit = re.Match[str]  # where a known message is in a line


@dataclass
class Finding:
    """A known message in a log.

    Attributes:
        file: the name of the log.
        known: the message, with its cause and remedy.
        line_number: the number of its first line.
        line: that line, or the part around the message, without control characters.
        address: the task in the message: `host:port`, `/job:worker/replica:0/task:3`, or srun's
            `n10: task 1`; '' if it names none.
        count: the number of lines with this message and address.
    """

    file: str
    known: KnownMessage
    line_number: int
    line: str
    address: str
    count: int = 0


_CUES = [(cue, known) for known in MESSAGES.values() for cue in known.cues.split("|") if cue]
_SHOWN_LENGTH = 200
_ADDRESS = re.compile(
    r"/job:\w{1,40}(?:/replica:\d{1,9})?/task:\d{1,9}"
    r"|(?<=ipv[46]:)(?:[\d.]{7,15}|(?:%5B|\[)[\w:.%]{2,60}?(?:%5D|\])):\d{1,5}"
    r'|(?<="target_address":")[\w.:\[\]-]{3,255}(?=")'
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
        found: the findings, by id and address.
        last_fault: the number of the last line with a cause or an effect.
    """

    last_fault = 0

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: dict[tuple[str, str], Finding] = {}
        self._significant: set[str] = set()  # the ids with a line that is not _END_NOISE
        self._waiting: set[str] = set()  # the ids of messages that a later line may settle

    def read(self, text: str, number: int) -> None:
        """Reads a line, or a piece of it; `number` is the line's."""
        # A carriage return, as in a progress bar, separates texts like the end of a line.
        for part in text.split("\r"):
            self._waiting -= {id for id in self._waiting if re.search(MESSAGES[id].settled, part)}
            known, match = search(part)
            if known and match:
                start = match.start()
                shown_from = start - 40 if start > _SHOWN_LENGTH // 2 else 0
                shown = part[shown_from : shown_from + _SHOWN_LENGTH]
                finding = Finding(self.file, known, number, printable(shown), _named_task(match))
                self.found.setdefault((known.id, finding.address), finding).count += 1
                if known.kind in FAULTS:
                    self.last_fault = number
                if not _END_NOISE.search(part):
                    self._significant.add(known.id)
                if known.settled:
                    self._waiting.add(known.id)

    @property
    def continues(self) -> bool:
        """Whether the job is to start again, although nothing has failed."""
        return any(id in ("saved", "preempted", "requeued", "node-failed") for id, _ in self.found)

    def findings(self) -> list[Finding]:
        """Returns the messages, without those that others explain."""
        messages = {finding.known for finding in self.found.values()}
        hidden = " ".join(["hidden", *[known.hides for known in messages]]).split()
        shown = {
            known.id
            for known in messages
            if not {known.id, known.kind}.intersection(hidden)
            and (not known.settled or known.id in self._waiting)
        }
        if self._significant.isdisjoint(shown):
            return []
        return [finding for finding in self.found.values() if finding.known.id in shown]


def search(text: str) -> tuple[KnownMessage | None, Hit | None]:
    """Returns the message in a text, with its match."""
    if not text.startswith("slurm-resolver supervise: "):  # it repeats the error of a task
        for cue, known in _CUES:
            match = re.search(known.pattern, text) if cue in text else None
            if match:
                return known, match
    return None, None


def _named_task(match: Hit) -> str:
    """Returns the task in the match, or else the last one in the line; '' without any."""
    addresses = [match.groupdict().get("address"), *reversed(_ADDRESS.findall(match.string))]
    return printable(next(filter(None, addresses), "")).replace("%5B", "[").replace("%5D", "]")


def printable(text: str) -> str:
    """Returns the text without control characters, which could change the terminal."""
    return _CONTROL_CHARACTERS.sub(" ", text).strip()
