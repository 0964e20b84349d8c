"""Divides a log into the starts of a job.

A job that is requeued or restarted may append to one log. Each of its starts is read by itself,
because the end of a start that was saved and continued later is not a failure.
"""

from __future__ import annotations

import re
from typing import BinaryIO

from slurm_resolver.diagnostics.first_failure import FailureReader

_LONGEST = 1024 * 1024  # bytes that are read as one line

# A start has ended. What follows belongs to the next start, if there is a line with _BEGIN.
_END = re.compile(
    r"srun: error: "
    r"|srun: (?:\S+: \w+: )?Terminating "
    r"|srun: Job step aborted"
    r"|slurm-resolver run: task "
    r"|.{0,80}\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT "
    r"|.{0,80}training saved.* because of "
)
_BEGIN = re.compile(
    r"\bcheck: \d+ (?:ok|skipped|warning|failed)\b"
    r"|training (?:resumes from|starts from the begin)"
    r"|slurm-resolver supervise: restart \d"
    r"|restart \d+ of at most "
    r"|Initializing Coordination"
)


def read_starts(stream: BinaryIO, file: str = "") -> list[FailureReader]:
    """Reads the log `file`, and returns the readers of the job's starts.

    The list has one if nothing says that the job started again.
    """
    starts = [FailureReader(file)]
    following: FailureReader | None = None  # has read what follows the last end
    number = 1
    for piece in iter(lambda: stream.readline(_LONGEST), b""):
        text = piece.decode("utf-8", "replace")
        if following and _BEGIN.search(text):
            starts.append(following)
            following = None
        starts[-1].read(text, number)
        if following:
            following.read(text, number)
        if _END.match(text):
            following = FailureReader(file)
        number += piece.endswith(b"\n")
    return starts
