"""Signals to the launcher, handled in a thread: a wait in the main thread cannot delay them."""

from __future__ import annotations

import signal
import socket
import threading
from typing import Callable, Mapping


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
