"""Commands that run inside a real Slurm for tests, and the processes below one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path


class ClusterCommand(subprocess.Popen[str]):
    """A command inside the cluster; signals go to the whole process group of the command.

    This process is nsenter, which only waits. If a signal ended it, the command would keep running.
    """

    shown = ""
    group = 0

    def find_group(self) -> None:
        """Waits for the command to start: setsid makes it the leader of a group."""
        while not self.group and self.poll() is None:
            for pid in children(self.pid):
                with contextlib.suppress(OSError):
                    if os.getpgid(pid) == pid:
                        self.group = pid
            time.sleep(0.001)

    def send_signal(self, sig: int) -> None:
        """Sends a signal to the command and its children, unless the command has ended."""
        if self.poll() is None and self.group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.group, sig)


def end_srun(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Ends an srun and the tasks of its step, and returns what they printed."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        process.send_signal(sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=10)
    return "", ""


def children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def descendants(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        yield from descendants(child)
