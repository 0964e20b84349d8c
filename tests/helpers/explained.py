"""What `explain` finds in a log, without the starts that were saved, and continued later."""

from __future__ import annotations

import io

from kinds import Strings

from slurm_resolver.diagnostics.log_starts import read_starts
from slurm_resolver.diagnostics.message_search import Finding


def explained(log: bytes | Strings) -> list[Finding]:
    data = log if isinstance(log, bytes) else "\n".join(log).encode("utf-8", "replace")
    starts = read_starts(io.BytesIO(data))
    return [
        finding
        for start in starts
        if start is starts[-1] or not start.continues
        for finding in start.findings()
    ]
