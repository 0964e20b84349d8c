"""The first step of a training, reported in a file to the `slurm-resolver run` that started it.

A variable contains the path of the file. Without it, or without the file, nothing is reported.
"""

from __future__ import annotations

import os
from contextlib import suppress

VARIABLE = "SLURM_RESOLVER_TRAINING_REPORTS"


def report_first_step() -> None:
    """Writes to the file that the first step is done: the training would save on a signal."""
    # There is none if run has ended, or a container hides it.
    with suppress(OSError), open(os.environ.get(VARIABLE, ""), "r+") as file:
        file.write("ready\n")
