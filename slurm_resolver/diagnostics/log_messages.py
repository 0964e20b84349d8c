"""Searches a log for known messages, in one pass.

A log may be long, and contain progress bars and bytes that are not text. The time grows linearly
with its size, and the memory with the number of findings.

A job that is requeued or restarted may append to one log. Each of its starts is read by itself,
because the end of a start that was saved and continued later is not a failure.
"""

from __future__ import annotations

import functools
import re
from typing import Any, BinaryIO, Callable, NamedTuple

from slurm_resolver.diagnostics.known_messages import MESSAGES


class Finding(NamedTuple):
    """A known message in a log: its first line, its cause and its remedy.

    Attributes:
        address: the task in the message: `host:port`, `/job:worker/replica:0/task:3`, or srun's
            `n10: task 1`.
        count: the number of lines with this message and address.
    """

    id: str
    line_number: int
    line: str
    cause: str
    remedy: str
    address: str | None
    count: int  # type: ignore[assignment]  # a tuple's method has this name


_CUES = [(cue, known) for known in MESSAGES.values() for cue in known.cues.split("|") if cue]
_SETTLED = [known for known in MESSAGES.values() if known.settled]
_LONGEST = 1024 * 1024  # bytes of a line that are looked at together
_SHOWN_LENGTH = 200
_ADDRESS = re.compile(
    r"/job:(\w{1,40})(?:/replica:\d{1,9})?/task:(\d{1,9})"
    r"|ipv[46]:((?:[\d.]{7,15}|(?:%5B|\[)[\w:.%]{2,60}?(?:%5D|\])):\d{1,5})"
    r'|"target_address":"([\w.:\[\]-]{3,255})"'
)
# TensorFlow prints this in a task that ends some time after the first task, which runs the
# coordination service. If that aborted an operation, further lines say so.
_END_NOISE = re.compile(
    r"BaseCollectiveExecutor::StartAbort UNAVAILABLE: (?!Error reported from)"
    r"|^ *(?:\d{1,7}: ?)?(?:Additional GRPC error information|:UNKNOWN:Error received) from "
)
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")

# A start has ended. What follows belongs to the next start, if there is a line with _BEGIN.
_END = re.compile(
    r"srun: (?:error: |(?:\S+: \w+: )?Terminating |Job step aborted)|slurm-resolver run: task "
    r"|.{0,80}\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT |.{0,80}training saved.* because of "
)
_BEGIN = re.compile(
    r"\bcheck: \d+ (?:ok|skipped|warning|failed)\b|training (?:resumes from|starts from the begin)"
    r"|slurm-resolver supervise: restart \d|restart \d+ of at most |Initializing Coordination"
)


class MessageReader:
    """Finds the known messages of one start.

    Attributes:
        found: the number of the first line, the line, and the number of lines, by id and address.
    """

    def __init__(self) -> None:
        self.found: dict[tuple[str, str | None], list[Any]] = {}
        self._significant: set[str] = set()  # the ids with a line that is not _END_NOISE
        self._settled: set[str] = set()  # the ids of messages that a later line settles

    def read(self, text: str, number: int) -> None:
        """Reads a line, or a piece of it; `number` is the line's."""
        # A carriage return, as in a progress bar, separates texts like the end of a line.
        for part in text.split("\r"):
            settled, id, match = search(part)
            self._settled.update(settled)
            if match:
                key = id, _named_task(match)
                line = _shorten(part, match.start())
                self.found.setdefault(key, [number, line, 0])[2] += 1
                if MESSAGES[id].becomes == "settled":  # it is no longer settled
                    self._settled.discard(id)
                if not _END_NOISE.search(part):
                    self._significant.add(id)

    @property
    def continues(self) -> bool:
        """Whether the job is to start again, although nothing has failed."""
        return any(id in ("saved", "preempted", "requeued") for id, _ in self.found)

    def findings(self) -> list[Finding]:
        """Returns the messages, without those that others explain."""
        knowns = {
            key: MESSAGES[MESSAGES[key[0]].becomes if key[0] in self._settled else key[0]]
            for key in self.found
        }
        hidden = {name for known in knowns.values() for name in known.hides}
        shown = {
            key: known for key, known in knowns.items() if hidden.isdisjoint((known.id, known.kind))
        }
        if self._significant.isdisjoint(id for id, _ in shown):
            return []
        findings = []
        for key, known in shown.items():
            number, line, count = self.found[key]
            findings.append(
                Finding(known.id, number, line, known.cause, known.remedy, key[1], count)
            )
        return findings


def read_starts(stream: BinaryIO, make: Callable[[], Any]) -> list[Any]:
    """Reads a log, and returns the readers of the job's starts, which `make` makes.

    They are MessageReaders. The list has one if nothing says that the job started again.
    """
    starts = [make()]
    following: Any = None  # has read what follows the last end
    number = 0
    is_start = True  # of a line
    for piece in iter(lambda: stream.readline(_LONGEST), b""):
        line = piece.decode("utf-8", "replace")
        if not is_start:
            MessageReader.read(starts[-1], line, number)
        else:
            number += 1
            if following and _BEGIN.search(line):
                starts.append(following)
                following = None
            for one in filter(None, (starts[-1], following)):
                one.read(line, number)
            if _END.match(line):
                following = make()
        is_start = piece.endswith(b"\n")
    return starts


@functools.lru_cache(maxsize=2)  # the reader of the next start may read the same text
def search(text: str) -> tuple[list[str], str, re.Match[str] | None]:
    """Returns the ids of the messages that a text settles, and the one in it with its match."""
    # `re` compiles a pattern when it is first used.
    knowns = [known for cue, known in _CUES if cue in text]
    settled = [known.id for known in _SETTLED if knowns and re.search(known.settled, text)]
    if not text.startswith("slurm-resolver supervise: "):  # it repeats the error of a task
        for known in knowns:
            match = re.search(known.pattern, text)
            if match:
                return settled, known.id, match
    return settled, "", None


def _named_task(match: re.Match[str]) -> str | None:
    """Returns the task in the match, or the next one in the line, or the last one before it."""
    named = match.groupdict().get("address")
    if named:
        return printable(named)
    text = match.string
    start = match.start()
    before = [None, *_ADDRESS.finditer(text, start - 300, start)]
    found = _ADDRESS.search(text, start, match.end() + 500) or before[-1]
    if found is None:
        return None
    job, task, *hosts = found.groups("")
    if job:
        return f"/job:{job}/replica:0/task:{task}"
    return "".join(hosts).replace("%5B", "[").replace("%5D", "]")


def _shorten(text: str, start: int) -> str:
    """Returns the part of the line around the message, without control characters."""
    first = start - 40 if start > _SHOWN_LENGTH // 2 else 0
    part = printable(text[first : first + _SHOWN_LENGTH])
    return ("… " if first else "") + part + (" …" if len(text) > first + _SHOWN_LENGTH else "")


def printable(text: str) -> str:
    """Returns the text without control characters, which could change the terminal."""
    return _CONTROL_CHARACTERS.sub(" ", text).strip()
