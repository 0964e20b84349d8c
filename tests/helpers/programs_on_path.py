"""Stand-ins for programs such as Slurm's commands."""

from __future__ import annotations

import os
from pathlib import Path


def stand_ins(folder: Path, text: str, *names: str) -> str:
    """Writes the script into a folder under each name; returns a PATH with that folder first."""
    for name in names:
        program = folder / name
        program.write_text(text)
        program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"
