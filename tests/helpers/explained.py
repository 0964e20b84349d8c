"""What `explain` finds in the last start in a log."""

from __future__ import annotations

import io

from kinds import Strings

from slurm_resolver.diagnostics.first_failure import FailureReader
from slurm_resolver.diagnostics.log_starts import read_last_start
from slurm_resolver.diagnostics.message_search import Finding


def last_start(log: bytes | Strings) -> FailureReader:
    data = log if isinstance(log, bytes) else "\n".join(log).encode("utf-8", "replace")
    return read_last_start(io.BytesIO(data))


def explained(log: bytes | Strings) -> list[Finding]:
    return last_start(log).findings()
