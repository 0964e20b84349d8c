"""One log a task, of what srun --label prints: the lines stay in the job's output as well.

srun itself can write such files (--output), but then passes nothing on of which the supervisor
could tell why a task has failed.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Dict

_LABEL = re.compile(rb" *(\d{1,7}): ?(.*)", re.S)
_LONGEST_LINE = 1024 * 1024


class RankLogs:
    """Appends each task's lines to rank-N.log of a folder, and srun's own to srun.log.

    What cannot be written, as on a full disk, is left out.
    """

    def __init__(self, folder: Path) -> None:
        """Makes the folder; raises OSError where that is not possible."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._parts = {"stdout": b"", "stderr": b""}

    def feed(self, stream: str, data: bytes) -> None:
        """Takes the next bytes of the stream "stdout" or "stderr"; none are its end."""
        *lines, rest = (self._parts[stream] + data).split(b"\n")
        if rest and (not data or len(rest) > _LONGEST_LINE):
            lines, rest = [*lines, rest], b""
        self._parts[stream] = rest
        files: Dict[str, bytes] = {}
        for line in lines:
            label = _LABEL.match(line)
            name = f"rank-{int(label[1])}.log" if label else "srun.log"
            files[name] = files.get(name, b"") + (label[2] if label else line) + b"\n"
        for name, text in files.items():  # opened each time: there may be more than may be open
            with contextlib.suppress(OSError), open(self._folder / name, "ab") as file:
                file.write(text)
