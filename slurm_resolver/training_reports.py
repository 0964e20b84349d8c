"""Reports a training's first step and its save to the `slurm-resolver run` that has started it.

`run --preempt-after` sets a variable to the path of a file. Without the variable or the file,
nothing happens.
"""

from __future__ import annotations

import contextlib
import os

VARIABLE = "SLURM_RESOLVER_TRAINING_REPORTS"

READY = "ready"  # a first step is done, and a signal would be answered by a save
SAVED = "saved"  # the training is saved, after a signal


def report(event: str) -> None:
    """Reports the event, if the variable is set."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    with contextlib.suppress(OSError):  # the reader has ended, or a container hides the file
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, f"{event}\n".encode())
        finally:
            os.close(file)
