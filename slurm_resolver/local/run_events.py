"""The first step of a training, reported to the `slurm-resolver run` that started it."""

from __future__ import annotations

import os
from contextlib import suppress
from signal import SIGURG

FIRST_STEP = SIGURG  # a process that does not handle it ignores it


def report_first_step() -> None:
    """Sends a signal if the first step is done: the training would save on a signal.

    The id of the job is that of the launcher's process. Without one, nothing is reported.
    """
    with suppress(OSError, ValueError):
        os.kill(int(os.environ.get("SLURM_RESOLVER_JOB", "")), FIRST_STEP)
