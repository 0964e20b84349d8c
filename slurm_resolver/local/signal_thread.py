"""Signals to the launcher, handled in a thread: a wait in the main thread cannot delay them."""

from __future__ import annotations

import signal
import socket
import threading
from typing import Callable, Mapping, Set

from slurm_resolver.errors import LaunchError
from slurm_resolver.slurm.time_limit import find_signal

# Those that srun lets its users ignore; it acts on no other.
IGNORABLE = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM]
IGNORABLE += [signal.SIGUSR1, signal.SIGUSR2]


def call_on_signals(actions: Mapping[int, Callable[[], None]]) -> None:
    """Calls the action of each signal that arrives, in another thread.

    Python runs a signal handler in the main thread, between two instructions: the handler of a
    signal that comes just before that thread starts to wait would run only after the wait, which
    may never end. The main thread calls this function.
    """
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    def listen() -> None:
        while True:
            for number in receiver.recv(64):
                if number in actions:
                    actions[number]()

    threading.Thread(target=listen, name="signals", daemon=True).start()
    signal.set_wakeup_fd(sender.detach(), warn_on_full_buffer=False)
    for number in actions:
        # The wakeup descriptor gets only signals that have a Python handler.
        signal.signal(number, lambda number, frame: None)


def read_ignored_signals(text: str) -> Set[signal.Signals]:
    """Reads srun's --ignore-signals: names or numbers, separated by commas.

    Raises:
        LaunchError: for a signal that srun refuses as well.
    """
    option = f"--ignore-signals {text!r}"
    signals = {find_signal(name, option) for name in text.split(",") if name}
    if not signals or not signals <= set(IGNORABLE):
        names = ", ".join(number.name[3:] for number in IGNORABLE)
        raise LaunchError(f"{option}: expected signals out of {names}, separated by commas")
    return signals
