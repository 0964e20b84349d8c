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
import threading
import time
from types import FrameType
from typing import Callable, Iterator, Mapping, Optional, Sequence

from slurm_resolver.errors import LaunchError
from slurm_resolver.supervision.rank_logs import RankLogs
from slurm_resolver.supervision.say import write
from slurm_resolver.supervision.step_output import StepOutput

_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
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
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        for number in _SIGNALS:
            signal.signal(number, self._handle)

    @property
    def name(self) -> str:
        """The name of the first signal."""
        return "no signal" if self.received is None else self.received.name

    def _handle(self, number: int, frame: Optional[FrameType]) -> None:
        first, self.received = self.received is None, self.received or signal.Signals(number)
        if self._process is not None:
            self._pass_on(self._process, number)
        if first:
            os.write(self._write_end, b"x")

    def _pass_on(self, process: subprocess.Popen[bytes], number: int) -> None:
        # a terminal sends Ctrl-C to srun as well, and a second one makes it abort the step
        if number != signal.SIGINT or not os.isatty(0):
            process.send_signal(number)

    @contextlib.contextmanager
    def passed_on_to(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Passes signals on to this process, also one that came as it was being started."""
        self._process = process
        if self.received is not None:
            self._pass_on(process, self.received)
        try:
            yield
        finally:
            self._process = None

    def wait(self, seconds: float) -> bool:
        """Waits for so long, or until a signal has come; returns whether one has."""
        if self.received is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._read_end, selectors.EVENT_READ)
                selector.select(seconds)
        return self.received is not None


class EndedStep:
    """A step that has ended: srun's exit status, its process id, and what was printed."""

    def __init__(self, status: int, pid: int, output: StepOutput) -> None:
        self.status, self.pid, self.output = status, pid, output


def run_step(
    command: Sequence[str],
    signals: Signals,
    worth_ending: Callable[[int], bool],
    end_step: Callable[[int], None],
    logs: Optional[RankLogs] = None,
    first_ranks: Optional[Mapping[str, int]] = None,
) -> EndedStep:
    """Runs srun to its end.

    Args:
        command: srun with its arguments.
        worth_ending: whether the other tasks are to be ended once one has failed with this status,
            unless srun does it.
        end_step: ends the step of the srun with this process id; called in a thread.
        logs: get what is printed, too.
        first_ranks: as `StepOutput` takes them.

    Raises:
        LaunchError: where srun cannot be started.
    """
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise LaunchError(f"{command[0]!r} cannot be started here ({error.strerror})") from error
    output = StepOutput(first_ranks)
    spares_nodes = bool({"--no-kill", "-k"} & set(command))  # a node may be lost
    with signals.passed_on_to(process), process, selectors.DefaultSelector() as selector:
        assert process.stdout is not None
        assert process.stderr is not None
        selector.register(process.stdout, selectors.EVENT_READ, ("stdout", 1))
        selector.register(process.stderr, selectors.EVENT_READ, ("stderr", 2))
        end_at: Optional[float] = None
        ended = False
        while selector.get_map():
            failed = output.failed
            worth = failed is not None and worth_ending(failed.status)
            if end_at is None and (worth or (output.lost_node and not spares_nodes)):
                end_at = time.monotonic() + _END_SECONDS
            if end_at is not None and not ended and time.monotonic() >= end_at:
                ended = True
                # after a node failure srun of 22.05 ends one component, and waits for the other
                if not output.ending or output.lost_node:
                    threading.Thread(target=end_step, args=(process.pid,), daemon=True).start()
            waits = None if end_at is None or ended else max(0.0, end_at - time.monotonic())
            for key, _ in selector.select(waits):
                data = os.read(key.fd, _PIECE)
                name, target = key.data
                if logs is not None:
                    logs.feed(name, data)
                if not data:
                    selector.unregister(key.fileobj)
                    continue
                write(target, data)
                output.feed(name, data)
        status = process.wait()
    return EndedStep(status if status >= 0 else 128 - status, process.pid, output)
