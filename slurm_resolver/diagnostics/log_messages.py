"""Searches a log for known messages, in one pass.

A log may be long, and contain progress bars and bytes that are not text. The time grows linearly
with its size, and the memory with the number of findings.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import BinaryIO, Callable, NamedTuple

from slurm_resolver.diagnostics.known_messages import KNOWN_MESSAGES, PEER_ENDED, TASKS_MET


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


_CUES = [(cue, known) for known in KNOWN_MESSAGES for cue in known.cues.split("|")]
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


def explain(lines: Iterable[str]) -> list[Finding]:
    """Returns a finding for each known message and address in `lines`, in order of appearance.

    The list is empty if all of them are messages that TensorFlow prints at the end of a good run.
    """
    return explain_file(io.BytesIO("\n".join(lines).encode("utf-8", "replace")))


def explain_file(
    stream: BinaryIO, reader: Callable[[str], None] = lambda text: None
) -> list[Finding]:
    """Does the same for an open file of any bytes.

    `reader` also gets the text of each line, or the first piece of a long line.
    """
    found: dict[tuple[str, str | None], Finding] = {}  # by id and address
    significant = set()  # the ids with a line that is not _END_NOISE
    tasks_met = False
    number = 1
    is_start = True  # of a line
    for piece in iter(lambda: stream.readline(_LONGEST), b""):
        line = piece.decode("utf-8", "replace")
        if is_start:
            reader(line)
        # A carriage return, as in a progress bar, separates texts like the end of a line.
        for text in line.split("\r"):
            # `re` compiles a pattern when it is first used.
            matches = [
                (known, re.search(known.pattern, text)) for cue, known in _CUES if cue in text
            ]
            if matches and TASKS_MET.search(text):
                tasks_met = True
            for known, match in matches:
                if match:
                    address = _named_task(match)
                    first = Finding(
                        known.id,
                        number,
                        _shorten(text, match.start()),
                        known.cause,
                        known.remedy,
                        address,
                        0,
                    )
                    finding = found.get((known.id, address), first)
                    found[known.id, address] = finding._replace(count=finding.count + 1)
                    if _END_NOISE.search(text) is None:
                        significant.add(known.id)
                    break
        is_start = piece.endswith(b"\n")
        number += is_start
    findings = list(found.values())
    if tasks_met:
        findings = [
            one._replace(id=PEER_ENDED.id, cause=PEER_ENDED.cause, remedy=PEER_ENDED.remedy)
            if one.id == "peer-refused"
            else one
            for one in findings
            if one.id != "tasks-missing"
        ]
        significant.discard("tasks-missing")
    return findings if significant else []


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
