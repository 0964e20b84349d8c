"""The process of one task on this machine: how it starts, gets signals, and what its end means."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Any, Callable, Mapping, Optional, Sequence

from slurm_resolver.child_process import end_with_parent
from slurm_resolver.local import wait_for_children as waiter

# A shell, as only the task's own process knows its id before the program starts.
_SET_TASK_PID = ("/bin/sh", "-c", 'export SLURM_TASK_PID=$$; exec "$0" "$@"')
# Without the packages that are installed: it starts in 10 ms.
_WAIT_FOR_CHILDREN = (sys.executable, "-I", "-S", waiter.__file__)


class TaskProcess:
    """A task's process, in a process group with all that it starts."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        directory: Optional[str],
        cpus: Optional[Sequence[int]],
        stdout: Any,
        stderr: Any,
        wait_for_children: bool = False,
    ) -> None:
        """Starts it, bound to these CPUs (None: not bound).

        Args:
            stdout: what Popen takes, as is `stderr`.
            wait_for_children: whether the task lasts until all that it has started has ended.

        Raises:
            OSError: where the machine cannot start another process.
        """
        self._popen: subprocess.Popen[bytes] = subprocess.Popen(
            [*(_WAIT_FOR_CHILDREN if wait_for_children else ()), *_SET_TASK_PID, *command],
            env=environ,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=_before_exec(cpus),
        )
        self.stdout = self._popen.stdout
        self.stderr = self._popen.stderr

    def wait(self) -> int:
        """Returns its exit status when it has ended: 128 and the number for a signal."""
        status = self._popen.wait()
        return status if status >= 0 else 128 - status

    def send(self, *signals: signal.Signals) -> None:
        """Sends the signals to the task and to all processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            for number in signals:
                os.killpg(self._popen.pid, number)


def describe_end(rank: int, status: int) -> str:
    """Returns a sentence about a task that ended with this exit status."""
    if status > 128:
        with contextlib.suppress(ValueError):
            return f"task {rank} was ended by {signal.Signals(status - 128).name}"
    return f"task {rank} ended with exit status {status}"


def _before_exec(cpus: Optional[Sequence[int]]) -> Callable[[], None]:
    """Returns what the new process does between fork and exec."""
    launcher = os.getpid()

    def prepare() -> None:
        end_with_parent(launcher)
        if cpus:
            os.sched_setaffinity(0, cpus)

    return prepare
