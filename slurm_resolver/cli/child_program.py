"""A program that `slurm-resolver exec` runs as its child, and for which it takes part in the job.

When the program ends, this process ends with the same status. When the job is over, a program that
only serves is ended, and after a failure every program. It first has some seconds to end by itself.
Then it receives SIGTERM, and later SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Collection
from typing import NoReturn

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination.client import connect
from slurm_resolver.coordination.job import START_SECONDS, JobResult, announcement
from slurm_resolver.coordination.member import Member
from slurm_resolver.local.child_process import SIGNALS, end_with_this
from slurm_resolver.log import print_line

_END_SECONDS = {0: 3.0, 1: 7.0}  # by the job's status: time for the program to end by itself
_TERM_SECONDS = 10.0  # from SIGTERM to SIGKILL


class ChildProgram:
    """The program of a task, and the task's part in the job."""

    def __init__(self, cluster: Cluster, servers: Collection[str]) -> None:
        """Joins the job; `servers` are the jobs whose programs only serve."""
        own = cluster.task
        service = cluster.service
        assert own is not None
        assert service is not None
        self._only_serves = own.job in servers
        self._has_ended = threading.Event()
        self._result: JobResult | None = None  # why the program was ended
        self._popen: subprocess.Popen[bytes] | None = None
        announced = announcement(
            [(task.job, task.index, task.address) for task in cluster.tasks], own.rank
        )
        assert announced is not None
        announced.update(serves=announced["serves"] or self._only_serves, seconds=START_SECONDS)
        self._member = Member(connect(service, cluster.name_of), announced, self._end_in_job)

    def run(self, command: list[str], environ: dict[str, str]) -> NoReturn:
        """Runs the program until it or the job has ended, and ends this process with its status.

        Raises:
            OSError: if the program cannot be started.
        """
        threading.Thread(
            target=self._member.await_joined, args=[START_SECONDS], daemon=True
        ).start()
        # The program inherits this process's open files, such as pipes of Slurm.
        program = subprocess.Popen(end_with_this(command, environ), env=environ, close_fds=False)
        self._popen = program
        for number in SIGNALS:
            signal.signal(number, lambda number, _: program.send_signal(number))
        status = program.wait()
        self._has_ended.set()
        status = status if self._result is None else self._result.status
        self._member.client.leave(_describe(status) if status else "")
        _end_process(status)

    def _end_in_job(self, member: Member, result: JobResult) -> None:
        """Ends the program because the job is over."""
        if result.status == 0 and not self._only_serves:
            return
        if self._has_ended.wait(_END_SECONDS[min(result.status, 1)]) or self._popen is None:
            return
        self._result = result
        if result.status:
            print_line(f"{member.name}: {result.message}")
        self._popen.terminate()
        if not self._has_ended.wait(_TERM_SECONDS):
            self._popen.kill()


def _end_process(status: int) -> NoReturn:
    """Ends this process with an exit status; -N stands for signal N."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has written its own
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        status = 128 - status
    os._exit(status)


def _describe(status: int) -> str:
    if status > 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"
