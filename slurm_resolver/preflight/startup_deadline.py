"""A start that hangs is ended: TensorFlow waits for a missing peer for ever, and says nothing."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
from typing import Iterator

# Runs beside the process: holding the interpreter, TensorFlow lets no thread of it print.
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
    """Ends this process with `message` and all threads' tracebacks if the block takes longer.

    It works while C++ code holds the interpreter, when neither threads nor signal handlers of
    Python run. The exit status is 1.
    """
    watchdog = subprocess.Popen(
        [sys.executable, "-S", "-c", _WATCHDOG, str(seconds), message + "\n", str(os.getpid())],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    # The message first, then the traceback, which ends the process.
    faulthandler.dump_traceback_later(seconds + 0.5, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        watchdog.send_signal(signal.SIGKILL)
        watchdog.communicate()
