"""How this process ends: well, or by an error; known when the `atexit` functions run.

Python keeps an exception that nobody handled in `sys.last_value`. It keeps no exit status, so
`sys.exit` is wrapped to remember its own. `raise SystemExit(2)` and `os._exit` cannot be seen.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, List, NoReturn

_LONGEST = 300

_statuses: List[Any] = []  # of the last call of sys.exit
_recording = False


def record_exit_status() -> None:
    """Remembers from now on what `sys.exit` is called with in the main thread."""
    global _recording
    if _recording:
        return
    _recording = True
    before = sys.exit

    def exit(status: Any = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():  # elsewhere it ends a thread
            _statuses[:] = [status]
        before(status)

    sys.exit = exit


def failure_reason() -> str:
    """Returns why this process, which is about to end, has failed; '' where it has not."""
    error = getattr(sys, "last_value", None)
    if error is not None:
        text = f"{type(error).__name__}: {error}".strip().rstrip(":")
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
    status = _statuses[0] if _statuses else None
    if status is None or (isinstance(status, int) and status == 0):
        return ""
    if isinstance(status, int):
        return f"exit status {int(status)}"
    return f"exit status 1, {str(status)[:_LONGEST]!r}"
