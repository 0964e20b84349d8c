"""Runs a program, and lasts until all that it has started has ended (srun --wait-for-children).

A program of its own, run by path: the process that the kernel gives a task's orphans to has to be
above that task alone, so that each task waits for its own. As with srun, a task whose first process
fails has ended at once, whatever it leaves running.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import List

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(command: List[str]) -> int:
    """Returns the exit status of the program itself: 128 and the number for a signal."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans below this process become its children
    # The signals to the task reach its whole process group: they are not for this process.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    own = os.getpid()
    first = os.fork()
    if first == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if os.getppid() == own:
            os.execvp(command[0], command)
        os._exit(1)
    status = 0
    while True:
        try:
            pid, ended = os.wait()
        except ChildProcessError:  # none is left
            return status
        if pid == first:
            status = os.WEXITSTATUS(ended) if os.WIFEXITED(ended) else 128 + os.WTERMSIG(ended)
            if os.WIFEXITED(ended) and status:
                return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
