"""A program that `slurm-resolver exec` runs as its child, and for which it takes part in the job.

When the program ends, this process ends with the same status. A worker's program that failed is
started again if `restarts` allows it, unless a signal asked the task to end.

When the job is over, a program that only serves is ended, and after a failure every program. It
first has some seconds to end by itself. Then it receives SIGTERM, and later SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import threading
from typing import Collection, Dict, List, NoReturn, Optional

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination.client import connect
from slurm_resolver.coordination.job import START_SECONDS, JobResult, announcement
from slurm_resolver.coordination.member import Member
from slurm_resolver.local.child_process import end_with_this
from slurm_resolver.log import print_line
from slurm_resolver.slurm.step import SlurmStep

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds before a restart; each is twice the last
_END_SECONDS = {0: 3.0, 1: 7.0}  # by the job's status: time for the program to end by itself
_TERM_SECONDS = 10.0  # from SIGTERM to SIGKILL
_ENDS_TASK = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class ChildProgram:
    """The program of a task, and the task's part in the job."""

    def __init__(
        self,
        command: List[str],
        environ: Dict[str, str],
        cluster: Cluster,
        servers: Collection[str],
        restarts: int,
    ) -> None:
        """Joins the job; `servers` are the jobs whose programs only serve."""
        own, service = cluster.task, cluster.service
        assert own is not None
        assert service is not None
        self._command, self._environ = command, environ
        self._name = cluster.name_of(own.rank)
        self._identity = service.identity
        self._only_serves = own.job in servers
        self._restarts = restarts if own.job == "worker" else 0
        self._stops = threading.Event()  # set once the program must not be restarted
        self._has_ended = threading.Event()
        self._result: Optional[JobResult] = None  # why the program was ended
        self._unsent: List[int] = []  # signals that arrived while the program was being started
        self._popen: Optional[subprocess.Popen[bytes]] = None
        tasks = [(task.job, task.index, task.address) for task in cluster.tasks]
        announced = announcement(tasks, own.rank)
        assert announced is not None
        announced.update(serves=announced["serves"] or self._only_serves, seconds=START_SECONDS)
        self._member = Member(connect(service, cluster.name_of), announced, self._end_in_job)

    def run(self) -> NoReturn:
        """Runs the program until it or the job has ended, and ends this process with its status.

        Raises:
            OSError: if the program cannot be started.
        """
        for number in (*_ENDS_TASK, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._forward)
        threading.Thread(
            target=self._member.await_joined, args=[START_SECONDS], daemon=True
        ).start()
        status = self._run_and_restart()
        self._has_ended.set()
        status = status if self._result is None else self._result.status
        self._member.client.leave(_describe(status) if status else "")
        end_process(status)

    def _run_and_restart(self) -> int:
        pause, restarts = _FIRST_PAUSE, 0
        while True:
            status = self._run_once(restarts)
            if self._stops.is_set() or status == 0 or not self._restarts:
                return status
            lost = f"{self._name} ended with {_describe(status)}"
            if restarts == self._restarts:
                print_line(f"{lost}; not restarted: --restart-workers is {self._restarts}")
                return status
            restarts += 1
            print_line(f"{lost}; restart {restarts} of at most {self._restarts} in {pause:g} s")
            if self._stops.wait(pause):
                return status
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _run_once(self, restarts: int) -> int:
        self._popen = None  # signals are kept until the program has started
        if restarts:
            self._environ[SlurmStep.task_restart.name] = f"{self._identity} {restarts}"
        command = end_with_this(self._command, self._environ)
        # The program inherits this process's open files, such as pipes of Slurm.
        self._popen = subprocess.Popen(command, env=self._environ, close_fds=False)
        while self._unsent:
            self._popen.send_signal(self._unsent.pop(0))
        return self._popen.wait()

    def _forward(self, number: int, frame: object) -> None:
        if number in _ENDS_TASK:
            self._stops.set()
        if self._popen is None:
            self._unsent.append(number)
        elif self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._popen.pid, number)

    def _end_in_job(self, result: JobResult) -> None:
        """Ends the program because the job is over."""
        self._stops.set()
        program = self._popen
        if result.status == 0 and not self._only_serves:
            return
        if program is None or self._has_ended.wait(_END_SECONDS[min(result.status, 1)]):
            return
        self._result = result
        if result.status:
            print_line(f"{self._name}: {result.message}")
        program.terminate()
        if not self._has_ended.wait(_TERM_SECONDS):
            program.kill()


def end_process(status: int) -> NoReturn:
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
