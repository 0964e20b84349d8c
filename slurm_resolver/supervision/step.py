"""One start of a step: srun as a child process, its output passed on as it comes.

Signals to this process are passed on to srun, which gives SIGUSR1 and SIGUSR2 to all tasks, and on
SIGTERM kills them.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from types import FrameType
from typing import Optional, Sequence, Tuple

from slurm_resolver.errors import LaunchError
from slurm_resolver.supervision.policy import is_error
from slurm_resolver.supervision.step_output import StepOutput

_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_POLL_SECONDS = 0.2
_PIECE = 64 * 1024
_END_SECONDS = 2.0  # how long srun has to end the other tasks by itself once one has failed


def _write(target: int, data: bytes) -> None:
    """Writes all of it; a full disk must not end a training."""
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(target, view) :]


def say(lines: Sequence[str]) -> None:
    """Prints lines for the user, each in one write, as tasks may print at the same time."""
    for line in lines:
        _write(2, f"slurm-resolver supervise: {line}\n".encode(errors="backslashreplace"))


class Signals:
    """Records the signals to this process, passes them on, and ends waits."""

    def __init__(self) -> None:
        self.received: Optional[signal.Signals] = None  # the first of them
        self._process: Optional[subprocess.Popen[bytes]] = None
        for name in _SIGNALS:
            signal.signal(signal.Signals[name], self._handle)

    def _handle(self, number: int, frame: Optional[FrameType]) -> None:
        self.received = self.received or signal.Signals(number)
        # A terminal sends Ctrl-C to srun as well, and a second one makes it abort the step.
        if self._process is not None and (number != signal.SIGINT or not os.isatty(0)):
            self._process.send_signal(number)

    def pass_on_to(self, process: Optional[subprocess.Popen[bytes]]) -> None:
        """Passes signals on to this process, also one that came as it was being started."""
        self._process = process
        if process is not None and self.received is not None:
            self._handle(self.received, None)

    def wait(self, seconds: float) -> None:
        """Waits for so long, or until a signal has come."""
        until = time.monotonic() + seconds
        while self.received is None and time.monotonic() < until:
            time.sleep(min(_POLL_SECONDS, seconds))


def run_step(command: Sequence[str], signals: Signals) -> Tuple[int, StepOutput]:
    """Runs srun to its end, and returns its exit status and its output.

    If a task or a node has failed, and srun does not end the other tasks, this does.

    Raises:
        LaunchError: if srun cannot be started.
    """
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise LaunchError(f"{command[0]!r} cannot be started here ({error.strerror})") from error
    output = StepOutput()
    signals.pass_on_to(process)
    with process, selectors.DefaultSelector() as selector:
        assert process.stdout is not None
        assert process.stderr is not None
        selector.register(process.stdout, selectors.EVENT_READ, ("stdout", 1))
        selector.register(process.stderr, selectors.EVENT_READ, ("stderr", 2))
        end_at = float("inf")  # when this ends the step
        while selector.get_map():
            failed = output.failed is not None and is_error(output.failed.status)
            if end_at == float("inf") and (failed or output.lost is not None):
                end_at = time.monotonic() + _END_SECONDS
            if time.monotonic() >= end_at:
                end_at = float("nan")  # never again
                if not output.ending or output.lost is not None:
                    process.terminate()
            for key, _ in selector.select(_END_SECONDS / 2):
                data = os.read(key.fd, _PIECE)
                name, target = key.data
                output.feed(name, data)
                _write(target, data)
                if not data:
                    selector.unregister(key.fileobj)
        status = process.wait()
    signals.pass_on_to(None)
    return status if status >= 0 else 128 - status, output
