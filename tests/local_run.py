"""What the tests of the local launcher share."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "slurm_resolver"]


def run(*arguments: str, **keywords: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False, **keywords
    )


def ended(pid: int) -> bool:
    """Awaits the end of a process that is not our child."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":  # nobody waits for it in a container without an init
            return True
        time.sleep(0.02)
    return False
