"""Finds the last start of a job in its log.

A job that is requeued or restarted may append to one log. The end of a start after which another
one began is no failure of the job.
"""

from __future__ import annotations

import re
from typing import BinaryIO

from slurm_resolver.diagnostics.first_failure import UNENDED, FailureReader

_LONGEST = 1024 * 1024  # bytes that are read as one line

# A start has ended. The next one begins with a line that has _BEGIN.
_END = re.compile(
    r"srun: error: "
    r"|srun: (?:\S+: \w+: )?Terminating "
    r"|srun: Job step aborted"
    r"|slurm-resolver run: task "
    r"|.{0,80}\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT "
    r"|.{0,80}training saved.* because of "
    rf"|{UNENDED.pattern}"
)
_BEGIN = re.compile(
    r"\bcheck: \d+ (?:ok|skipped|warning|failed)\b"
    r"|training (?:resumes from|starts from the begin)"
    r"|slurm-resolver supervise: restart \d"
    r"|restart \d+ of at most "
    r"|(?P<leads>Initializing Coordination)"
)


def read_last_start(stream: BinaryIO, file: str = "") -> FailureReader:
    """Reads the log `file`, and returns the reader of the job's last start."""
    reader = FailureReader(file)
    has_ended = False
    number = 1
    for piece in iter(lambda: stream.readline(_LONGEST), b""):
        text = piece.decode("utf-8", "replace")
        begin = _BEGIN.search(text) if has_ended else None
        if begin and not (begin["leads"] and reader.rank_0_runs):
            reader = FailureReader(file)
            has_ended = False
        reader.read(text, number)
        has_ended = has_ended or _END.match(text) is not None
        number += piece.endswith(b"\n")
    return reader
