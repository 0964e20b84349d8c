"""Starts a task's program so that it does not outlive the process above it, however that ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# It runs in the place of a function between fork and exec (`preexec_fn`), which is not safe in a
# process that has threads. 1 is PR_SET_PDEATHSIG. Python ignores two signals: they are restored.
# Only the task's own process knows its id before the program starts.
_START = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
os.environ["SLURM_TASK_PID"] = str(os.getpid())
if os.getppid() == int(sys.argv[1]):
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:  # such as a script without #!, which srun does not start either
        sys.exit(f"slurm-resolver run: {sys.argv[2]!r} cannot be started: {error.strerror}")
"""


def end_with_this(command: Sequence[str]) -> list[str]:
    """Returns the command for a program that the kernel kills when this process ends."""
    return [sys.executable, "-I", "-S", "-c", _START, str(os.getpid()), *command]
