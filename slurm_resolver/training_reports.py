"""How far a training is, told to the `slurm-resolver run` that has started it, where that asks.

It asks by a variable, with the path of a file. Where nobody asks, or the file is gone, nothing
happens.
"""

from __future__ import annotations

import contextlib
import os

VARIABLE = "SLURM_RESOLVER_TRAINING_REPORTS"

READY = "ready"  # a first step is done, and a signal would be answered by a save
SAVED = "saved"  # the training is saved, after a signal


def report(event: str) -> None:
    """Tells it, if somebody wants to know."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    with contextlib.suppress(OSError):  # the reader has ended, or a container hides the file
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, f"{event}\n".encode())
        finally:
            os.close(file)
