"""Records the signals that tell that this process will be ended soon."""

from __future__ import annotations

import atexit
import signal
from collections.abc import Collection
from signal import SIG_IGN, SIGTERM, Signals
from threading import current_thread, main_thread

from slurm_resolver.errors import ResumeError
from slurm_resolver.signals import end_children_by_sigterm, handle, keep_from_children


class SignalWatch:
    """Records which of the given signals this process gets first.

    Attributes:
        received: the name of the first one that has come; None before.
        terminated: whether SIGTERM has come, as the first or a later signal.
        ended: whether SIGTERM has come since `leave_on_sigterm`.
    """

    received: str | None = None
    terminated = False
    ended = False
    _leaving = False

    def __init__(self, names: Collection[str]) -> None:
        names = (names,) if isinstance(names, str) else tuple(names)
        for name in names:
            if name not in Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
                raise ResumeError(
                    f"signals={names!r}: {name!r} is not a signal that a process can handle; "
                    "expected names such as 'SIGUSR1' and 'SIGTERM'."
                )
        self._numbers = [Signals[name] for name in names]
        # Python removes its handlers before TensorFlow has shut down. A signal in between must not
        # kill a program that has finished.
        atexit.register(handle, self._numbers, SIG_IGN)
        end_children_by_sigterm(self._record)
        # The other signals reach all processes of the step: a child that reads data must live until
        # the training is saved.
        keep_from_children({*self._numbers} - {SIGTERM})

    def arm(self) -> None:
        """Installs the handlers, in place of any that other code has installed since."""
        if current_thread() is not main_thread():
            raise ResumeError(
                "termination_config was called, or its config used, in the thread "
                f"{current_thread().name!r}; expected the main thread: "
                "Python installs signal handlers only there."
            )
        handle(self._numbers, self._record)

    def leave_on_sigterm(self) -> None:
        """Makes `ended` tell whether a SIGTERM comes from now on, by which Slurm ends the job."""
        self._leaving = True
        signal.signal(SIGTERM, self._record)

    def _record(self, number: int, frame: object) -> None:
        # No lock: the code that the signal has interrupted may hold it.
        if number == SIGTERM:
            self.terminated = True
            self.ended = self._leaving
        if not self.received and not self._leaving:
            self.received = Signals(number).name
