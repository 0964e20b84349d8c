"""What a new process does between fork and exec, so that it does not outlive the one above it."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # loaded here: between fork and exec it is too late


def end_with_parent(parent: int) -> None:
    """Has the kernel kill this process when the one with this id ends, however that ends.

    Only what has been there before the fork is used: see subprocess's `preexec_fn`.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
