"""Ends a start that hangs: TensorFlow waits for a missing task for ever, and prints nothing."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
from typing import Iterator

# A process of its own: TensorFlow holds the interpreter's lock, so that no thread could print.
_WATCHDOG = """
import os, select, signal, sys
seconds, message, pid = float(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if not select.select([0], [], [], seconds)[0]:
    os.write(2, message.encode())
    if not select.select([0], [], [], 10)[0] and os.getppid() == pid:
        os.kill(pid, signal.SIGKILL)
"""


@contextlib.contextmanager
def startup_deadline(seconds: float, message: str) -> Iterator[None]:
    """Ends this process with `message` and all tracebacks if the block takes more than `seconds`.

    It works while C++ code holds the interpreter's lock, when neither threads nor signal handlers
    of Python run. The exit status is 1.
    """
    watchdog = subprocess.Popen(
        [sys.executable, "-S", "-c", _WATCHDOG, str(seconds), message + "\n", str(os.getpid())],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    # It comes after the message: it prints the tracebacks and ends the process.
    faulthandler.dump_traceback_later(seconds + 0.5, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        watchdog.send_signal(signal.SIGKILL)
        watchdog.communicate()
