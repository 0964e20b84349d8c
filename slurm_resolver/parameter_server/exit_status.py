"""Tells the functions that Python calls at its exit (`atexit`) whether this process has failed.

Python keeps an exception that was not handled in `sys.last_value`. It does not keep the exit
status: `sys.exit` is wrapped here to record it. `raise SystemExit(2)` and `os._exit` are not
noticed.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, List, NoReturn

_MAX_LENGTH = 300  # characters of an error or a status in a message

_statuses: List[Any] = []  # the argument of the last call of sys.exit; empty before the first
_recording = False


def record_exit_status() -> None:
    """Records from now on the argument of `sys.exit` in the main thread."""
    global _recording
    if _recording:
        return
    _recording = True
    original_exit = sys.exit

    def exit(status: Any = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():  # in others it ends the thread
            _statuses[:] = [status]
        original_exit(status)

    sys.exit = exit


def failure_reason() -> str:
    """Returns why this process, which is ending, has failed; '' where it has not."""
    error = getattr(sys, "last_value", None)
    if error is not None:
        text = f"{type(error).__name__}: {error}".strip().rstrip(":")
        return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]} …"
    status = _statuses[0] if _statuses else None
    if status is None or (isinstance(status, int) and status == 0):
        return ""
    if isinstance(status, int):
        return f"exit status {int(status)}"
    return f"exit status 1, {str(status)[:_MAX_LENGTH]!r}"
