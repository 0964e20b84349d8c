"""One start of a step: srun as a child process, its output passed on as it comes.

Signals to this process are passed on to srun, which gives SIGUSR1 and SIGUSR2 to all tasks, and on
SIGTERM kills them.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from types import FrameType
from typing import Callable, NamedTuple, Optional, Sequence

from slurm_resolver.errors import LaunchError
from slurm_resolver.supervision.passed_on import RankLogs, write
from slurm_resolver.supervision.step_output import StepOutput

_SIGNALS = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
    *(signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
)
_POLL_SECONDS = 0.2
_PIECE = 64 * 1024
_END_SECONDS = 2.0  # how long srun has to end the other tasks by itself once one has failed


class Signals:
    """The signals that this process gets: remembered, passed on, and an end to all waiting.

    Attributes:
        received: the first of them.
    """

    def __init__(self) -> None:
        self.received: Optional[signal.Signals] = None
        self._process: Optional[subprocess.Popen[bytes]] = None
        for number in _SIGNALS:
            signal.signal(number, self._handle)

    @property
    def name(self) -> str:
        """The name of the first signal."""
        return "no signal" if self.received is None else self.received.name

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


class EndedStep(NamedTuple):
    """A step that has ended: srun's exit status, and what was printed."""

    status: int
    output: StepOutput


def run_step(
    command: Sequence[str],
    signals: Signals,
    worth_ending: Callable[[int], bool],
    logs: Optional[RankLogs] = None,
) -> EndedStep:
    """Runs srun to its end.

    Args:
        command: srun with its arguments.
        worth_ending: whether the other tasks have to end once one has failed with this status,
            unless srun ends them.
        logs: get what is printed, too.

    Raises:
        LaunchError: where srun cannot be started.
    """
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise LaunchError(f"{command[0]!r} cannot be started here ({error.strerror})") from error
    output = StepOutput(logs)
    survives_nodes = bool({"--no-kill", "-k"} & set(command))
    signals.pass_on_to(process)
    with process, selectors.DefaultSelector() as selector:
        assert process.stdout is not None
        assert process.stderr is not None
        selector.register(process.stdout, selectors.EVENT_READ, ("stdout", 1))
        selector.register(process.stderr, selectors.EVENT_READ, ("stderr", 2))
        end_at: Optional[float] = None
        ended = False
        while selector.get_map():
            failed = output.failed is not None and worth_ending(output.failed.status)
            if end_at is None and (failed or (output.lost is not None and not survives_nodes)):
                end_at = time.monotonic() + _END_SECONDS
            if end_at is not None and not ended and time.monotonic() >= end_at:
                ended = True
                if not output.ending or output.lost is not None:
                    process.terminate()
            waits = None if end_at is None or ended else max(0.0, end_at - time.monotonic())
            for key, _ in selector.select(waits):
                data = os.read(key.fd, _PIECE)
                name, target = key.data
                output.feed(name, data)
                write(target, data)
                if not data:
                    selector.unregister(key.fileobj)
        status = process.wait()
    signals.pass_on_to(None)
    return EndedStep(status if status >= 0 else 128 - status, output)
