"""What is printed, while srun's output passes through."""

from __future__ import annotations

import contextlib
import os
from typing import Sequence


def write(target: int, data: bytes) -> None:
    """Writes all of it; what cannot be written, as on a full disk, must not end a training."""
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(target, view) :]


def say(lines: Sequence[str]) -> None:
    """Prints lines for the user, each in one write, as tasks may print at the same time."""
    for line in lines:
        write(2, f"slurm-resolver supervise: {line}\n".encode(errors="backslashreplace"))
