"""The search for known messages in a log, in one pass.

A log may be long, and have lines of many megabytes, progress bars and bytes that are not text. The
time grows linearly with its size, and the memory with the number of findings, which is bounded.
"""

from __future__ import annotations

import itertools
import re
from typing import (
    BinaryIO,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Pattern,
    Set,
    Tuple,
)

from slurm_resolver.diagnostics.known_messages import KNOWN_MESSAGES, KnownMessage


class Finding(NamedTuple):
    """A known message in a log: where it first appears, what it means and what to do.

    Attributes:
        address: the task that it names: `host:port`, `/job:worker/replica:0/task:3`, or srun's
            `n10: task 1`.
        count: the number of lines with this message and address.
    """

    id: str
    line_number: int
    line: str
    cause: str
    remedy: str
    address: Optional[str]
    count: int  # type: ignore[assignment]  # a tuple's method has this name


_CUES = [(cue, known) for known in KNOWN_MESSAGES for cue in known.cues]
_PIECE = 64 * 1024  # characters or bytes of a line that are searched at once
_OVERLAP = 1024  # a message may lie across two pieces
_MOST_ADDRESSES = 100  # of one id; further ones share a finding without an address
_SHOWN_LENGTH = 200
_ADDRESS = re.compile(
    r"/job:(\w{1,40})(?:/replica:\d{1,9})?/task:(\d{1,9})"
    r"|ipv[46]:((?:[\d.]{7,15}|(?:%5B|\[)[\w:.%]{2,60}?(?:%5D|\])):\d{1,5})"
    r'|"target_address":"([\w.:\[\]-]{3,255})"'
)
# What TensorFlow prints in a task that ends some time after the first one, which runs the
# coordination service: nothing was under way that it could abort, else lines about that follow.
_END_NOISE = re.compile(
    r"BaseCollectiveExecutor::StartAbort UNAVAILABLE: (?!Error reported from)"
    r"|^ *(?:\d{1,7}: ?)?(?:Additional GRPC error information|:UNKNOWN:Error received) from "
)
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def explain(lines: Iterable[str]) -> List[Finding]:
    """Returns a finding for each known message and address in `lines`, in order of appearance.

    None where all of them are what TensorFlow prints at the good end of a task that ends last.
    """
    return _find_messages(
        (number, line[max(0, start - _OVERLAP) : start + _PIECE])
        for number, line in enumerate(lines, 1)
        for start in range(0, len(line), _PIECE)
    )


def explain_file(
    stream: BinaryIO, reader: Callable[[int, str], None] = lambda number, text: None
) -> List[Finding]:
    """Does the same for an open file of any bytes, and never holds more than a piece of it.

    `reader` gets the number and the text of each line, or piece of a long one, as well.
    """
    return _find_messages(_read_with(reader, _read_pieces(stream)))


def _read_with(
    reader: Callable[[int, str], None], pieces: Iterable[Tuple[int, str]]
) -> Iterator[Tuple[int, str]]:
    for piece in pieces:
        reader(*piece)
        yield piece


def _read_pieces(stream: BinaryIO) -> Iterator[Tuple[int, str]]:
    """Yields the number of a line and a piece of it; pieces of one line overlap."""
    number, tail = 1, b""
    while True:
        piece = stream.readline(_PIECE)
        if not piece:
            return
        yield number, (tail + piece).decode("utf-8", "replace")
        ended = piece.endswith(b"\n")
        number, tail = number + ended, b"" if ended else piece[-_OVERLAP:]


def _pieces_with_cues(
    pieces: Iterable[Tuple[int, str]],
) -> Iterator[Tuple[int, str, List[KnownMessage]]]:
    """Yields the pieces with a cue, and the messages whose cue they have.

    Most lines of a log have none: many of them are searched at once.
    """
    group: List[Tuple[int, str]] = []
    size = 0
    for number, text in itertools.chain(pieces, [(0, "")]):
        if size >= _PIECE or not number:
            joined = "".join([part for _, part in group])
            cues = [(cue, known) for cue, known in _CUES if cue in joined]
            for line_number, part in group if cues else ():
                candidates = [known for cue, known in cues if cue in part]
                if candidates:
                    yield line_number, part, candidates
            group, size = [], 0
        # a carriage return, as of a progress bar, separates texts like the end of a line
        group += [(number, part) for part in text.split("\r")]
        size += len(text) + 100  # an empty line takes memory too


def _find_messages(pieces: Iterable[Tuple[int, str]]) -> List[Finding]:
    found: Dict[Tuple[str, Optional[str]], Finding] = {}
    last_line: Dict[Tuple[str, Optional[str]], int] = {}  # the last one that was counted
    unresolved: Dict[Tuple[str, Optional[str]], Pattern[str]] = {}
    num_addresses: Dict[str, int] = {}
    telling: Set[Tuple[str, Optional[str]]] = set()  # with a line that is no noise
    for number, text, candidates in _pieces_with_cues(pieces):
        for key in [key for key in unresolved if unresolved[key].search(text)]:
            del found[key], unresolved[key]
        for known in candidates:
            match = known.pattern.search(text)
            if match is None:
                continue
            address = _named_task(match)
            key = (known.id, address)
            if key not in found:
                if address and num_addresses.setdefault(known.id, 0) >= _MOST_ADDRESSES:
                    key = (known.id, None)
                elif address:
                    num_addresses[known.id] += 1
            before = found.get(key)
            if before is None:
                shown = _shorten(text, match.start())
                found[key] = Finding(known.id, number, shown, known.cause, known.remedy, key[1], 1)
                if known.resolved:
                    unresolved[key] = known.resolved
            elif last_line[key] != number:
                found[key] = before._replace(count=before.count + 1)
            last_line[key] = number
            if _END_NOISE.search(text) is None:
                telling.add(key)
            break
    return list(found.values()) if telling & found.keys() else []


def _named_task(match: re.Match[str]) -> Optional[str]:
    """Returns the task that the pattern found, or the next one in the line, or the last before."""
    named = match.groupdict().get("address")
    if named:
        return printable(named)
    text, start = match.string, match.start()
    after = _ADDRESS.finditer(text, start, match.end() + 500)
    before = list(_ADDRESS.finditer(text, max(0, start - 300), start))[-1:]
    for found in itertools.chain(after, before):
        if found.group(1):
            return f"/job:{found.group(1)}/replica:0/task:{found.group(2)}"
        return (found.group(3) or found.group(4)).replace("%5B", "[").replace("%5D", "]")
    return None


def _shorten(text: str, start: int) -> str:
    """Returns the part of the line around the message, printable and short."""
    first = start - 40 if start > _SHOWN_LENGTH // 2 else 0
    part = printable(text[first : first + _SHOWN_LENGTH])
    return ("… " if first else "") + part + (" …" if len(text) > first + _SHOWN_LENGTH else "")


def printable(text: str) -> str:
    """Returns the text without what would do something to a terminal."""
    return _CONTROL_CHARACTERS.sub(" ", text).strip()
