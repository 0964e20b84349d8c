"""Signals that say that this process will be ended soon: noted here, acted upon elsewhere."""

from __future__ import annotations

import atexit
import signal
import threading
from types import FrameType
from typing import Collection, Optional, Tuple

from slurm_resolver.errors import ResumeError


class SignalWatch:
    """Notes the first of some signals that this process gets, and does nothing else about it.

    Attributes:
        received: its name, None before one came.
        terminated: whether SIGTERM has come at all, as the first or a later one.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names: Tuple[str, ...] = (names,) if isinstance(names, str) else tuple(names)
        self.received: Optional[str] = None
        self.terminated = False
        self._leaving = False
        self._ended = False
        for name in self.names:
            if not (name.startswith("SIG") and hasattr(signal, name)):
                raise ResumeError(
                    f"signals={self.names!r}: {name!r} is no signal; expected names such as "
                    "'SIGUSR1' and 'SIGTERM'."
                )
            if name in ("SIGKILL", "SIGSTOP"):
                raise ResumeError(f"signals={self.names!r}: no process can handle {name}.")

    def arm(self) -> None:
        """Installs the handlers, over those that anything else has installed since."""
        if threading.current_thread() is not threading.main_thread():
            raise ResumeError(
                "termination_config was called, or its config used, in the thread "
                f"{threading.current_thread().name!r}; expected the main thread, as only there "
                "Python lets handlers of signals be installed."
            )
        for name in self.names:
            signal.signal(getattr(signal, name), self._note)
        # A program that has come to its end must not die of a signal while TensorFlow shuts down,
        # when Python's handlers are gone.
        atexit.unregister(self._ignore)
        atexit.register(self._ignore)

    def leave_on_sigterm(self) -> None:
        """From now on a SIGTERM is Slurm's word that the job is over: see `ended`."""
        self._leaving = True
        signal.signal(signal.SIGTERM, self._note)

    @property
    def ended(self) -> bool:
        """Whether a SIGTERM has come since `leave_on_sigterm`."""
        return self._ended

    def _ignore(self) -> None:
        for name in self.names:
            signal.signal(getattr(signal, name), signal.SIG_IGN)

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        # Plain attributes: a lock may be held by the very code that the signal has interrupted.
        self.terminated = self.terminated or number == signal.SIGTERM
        if self._leaving:
            self._ended = self._ended or number == signal.SIGTERM
        elif self.received is None:
            self.received = signal.Signals(number).name
