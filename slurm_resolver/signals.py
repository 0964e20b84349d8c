"""Signals and exit statuses: which ones a launcher passes on, and what a status means."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Collection, Iterable
from typing import Any

# The exit statuses after a training was saved, which batch file and launchers read.
REQUEUE_STATUS = 75  # EX_TEMPFAIL of sysexits.h: try again later
TERMINATED_STATUS = 143  # as a shell reports a process that SIGTERM has ended
MAX_RESTARTS_STATUS = 1  # the job may not be requeued once more
# The signals that a launcher passes on to what it starts, or ends it by.
PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
# Slurm sends them to all processes of a step, and they end a process that does not expect them.
OF_USERS = (signal.SIGUSR1, signal.SIGUSR2)
# Python ignores these, and a program that it starts would ignore them as well.
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

_receivers: dict[int, threading.Thread] = {}  # by the signal that they get for this process


def handle(numbers: Iterable[int], handler: Any) -> None:
    """Installs a function, or one of `signal.Handlers`, for each of the signals."""
    for number in numbers:
        signal.signal(number, handler)


def end_children_by_sigterm(*handlers: Any) -> None:
    """Lets SIGTERM end a child that this process forks, if it inherits one of these handlers.

    What forks a child expects that `terminate()` ends it, and may wait for it without end.
    """

    def restore() -> None:
        if signal.getsignal(signal.SIGTERM) in handlers:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    os.register_at_fork(after_in_child=restore)


def ignore_in_children() -> None:
    """Lets children that this process forks ignore OF_USERS, unless it handles them."""

    def ignore() -> None:
        handle([n for n in OF_USERS if signal.getsignal(n) == signal.SIG_DFL], signal.SIG_IGN)

    os.register_at_fork(after_in_child=ignore)


def keep_from_children(numbers: Collection[int]) -> None:
    """Blocks signals in this thread and its children; another thread gets them for this process.

    A program that a child runs has no handler, and cannot be made to ignore a signal that this
    process handles. But a blocked signal stays blocked.
    """

    def receive() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, left)
        threading.Event().wait()

    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    # A forked child has the table, but not the threads.
    left = [n for n in numbers if n not in _receivers or not _receivers[n].is_alive()]
    if left:
        thread = threading.Thread(target=receive, name="slurm_resolver signals", daemon=True)
        thread.start()
        _receivers.update(dict.fromkeys(left, thread))


def signal_name(number: int) -> str:
    """Returns the name of a signal, such as "SIGKILL"; "" if there is none."""
    return next((known.name for known in signal.Signals if known == number), "")


def shell_status(status: int) -> int:
    """Returns the exit status that a shell reports, by that of `subprocess`.

    A process that signal N has ended is 128 + N to a shell, and -N to `subprocess`.

    >>> shell_status(3), shell_status(-9)
    (3, 137)
    """
    return status if status >= 0 else 128 - status
