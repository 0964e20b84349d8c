"""Where the output of a step goes: to that of the batch file, and into a log for each task."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Dict, Optional, Sequence, Tuple

_LABEL = re.compile(r" *(\d{1,7}): ?(.*)", re.S)  # of srun --label


def write(target: int, data: bytes) -> None:
    """Writes all of it; a full disk must not end a training."""
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(target, view) :]


def say(lines: Sequence[str]) -> None:
    """Prints lines for the user, each in one write, as tasks may print at the same time."""
    for line in lines:
        write(2, f"slurm-resolver supervise: {line}\n".encode(errors="backslashreplace"))


def split_label(line: str) -> Tuple[Optional[int], str]:
    """Returns the rank by which `srun --label` begins a line, and the task's own text."""
    label = _LABEL.match(line)
    return (int(label[1]), label[2]) if label else (None, line)


class RankLogs:
    """Appends each task's lines to rank-N.log of a folder, and srun's own to srun.log.

    srun itself can write such files (--output), but then passes nothing on.
    """

    def __init__(self, folder: Path) -> None:
        """Makes the folder; raises OSError where that is not possible."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def write(self, lines: Sequence[bytes]) -> None:
        """Appends the lines; what cannot be written, as on a full disk, is left out."""
        files: Dict[str, bytes] = {}
        for line in lines:
            rank, text = split_label(line.decode(errors="surrogateescape"))
            name = "srun.log" if rank is None else f"rank-{rank}.log"
            files[name] = files.get(name, b"") + f"{text}\n".encode(errors="surrogateescape")
        for name, data in files.items():  # opened each time: there may be more than may be open
            with contextlib.suppress(OSError), open(self._folder / name, "ab") as file:
                file.write(data)
