"""A worker of a ParameterServerStrategy that is started again where it has been lost.

TensorFlow's coordinator takes a worker back that comes again at its address. So that it can, the
program runs as a child of the process that Slurm knows: this one, which starts it again.

| the program | what follows |
|---|---|
| ended with status 0, or after `serve()` knew that the job has ended | this process ends alike |
| was killed, crashed or failed | it is started again, after a pause, as often as is allowed |
| the same, after a signal that asks the task to end | this process ends alike |
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
import subprocess
import threading
from typing import List, Mapping, NamedTuple, NoReturn, Optional, Sequence

from slurm_resolver.child_process import end_with_parent
from slurm_resolver.parameter_server.protocol import print_line
from slurm_resolver.slurm.step import SlurmStep

_RESULT_VARIABLE = "SLURM_RESOLVER_RESULT_FD"  # the pipe by which a program tells
_TAKES_PART, _HAS_ENDED = b"p", b"e"
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds; twice the last one each time
_ENDS_TASK = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_FORWARDED = (*_ENDS_TASK, signal.SIGUSR1, signal.SIGUSR2)


class End(NamedTuple):
    """How a program has ended: as Popen tells it, and whether its job has ended before it."""

    status: int
    job_has_ended: bool


class RestartedProgram:
    """A program that is started again when it is lost."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        most: int,
        name: str,
        identity: str,
    ) -> None:
        """Prepares it.

        Args:
            command: the program and its arguments.
            environ: its variables.
            most: how often at most it is started again.
            name: the task's, in messages.
            identity: the step's.
        """
        self._command = list(command)
        self._environ = dict(environ)
        self._most = most
        self._name = name
        self._identity = identity
        self._asked_to_end = threading.Event()
        self._unsent: List[int] = []  # signals that came while the program was being started
        self._popen: Optional[subprocess.Popen[bytes]] = None
        self._pipe: Optional[int] = None  # its end to read from
        self._said = b""  # what the program has told
        self._reading = threading.Lock()

    def run(self) -> int:
        """Returns how the last start has ended: an exit status, or a signal's number below 0.

        Raises:
            OSError: where the program cannot be started.
        """
        handlers = {number: signal.signal(number, self._forward) for number in _FORWARDED}
        try:
            for restarts in range(self._most + 1):
                end = self._run_once(restarts)
                if self._asked_to_end.is_set() or end.job_has_ended or end.status == 0:
                    break
                lost = f"{self._name} {_describe(end.status)}"
                if restarts == self._most:
                    if self._most:
                        reason = f"--restart-workers is {self._most}"
                        print_line(f"{lost}; not started again: {reason}")
                    break
                pause = min(_FIRST_PAUSE * 2**restarts, _LONGEST_PAUSE)
                print_line(f"{lost}; restart {restarts + 1} of at most {self._most} in {pause:g} s")
                if self._asked_to_end.wait(pause):
                    break
            return end.status
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def end(self, patience: float) -> None:
        """Has the program end by SIGTERM, and by SIGKILL after so many seconds; any thread may."""
        self._forward(signal.SIGTERM, None)
        program = self._popen
        if program is None:
            return
        try:
            program.wait(patience)
        except subprocess.TimeoutExpired:
            program.kill()

    @property
    def pid(self) -> Optional[int]:
        """The process of the program; None before it is started, and when it has ended."""
        program = self._popen
        return None if program is None or program.returncode is not None else program.pid

    @property
    def was_asked_to_end(self) -> bool:
        """Whether a signal has asked this process to end, or `end` the program."""
        return self._asked_to_end.is_set()

    def ends_by_itself(self, patience: float) -> bool:
        """Returns whether the program has ended, after so many seconds at most; any thread may ask.

        Or will do so, as it takes part in its job itself.
        """
        if _TAKES_PART in self._read_pipe():
            return True
        program = self._popen
        with contextlib.suppress(subprocess.TimeoutExpired):
            if program is not None:
                program.wait(patience)
                return True
        return _TAKES_PART in self._read_pipe()

    def _read_pipe(self) -> bytes:
        with self._reading, contextlib.suppress(BlockingIOError):
            if self._pipe is not None:
                self._said += os.read(self._pipe, 64)
        return self._said

    def _run_once(self, restarts: int) -> End:
        self._popen = None  # until it is known, signals are kept for it
        told, tells = os.pipe()
        os.set_blocking(told, False)
        os.set_inheritable(tells, True)
        with self._reading:
            self._pipe, self._said = told, b""
        try:
            environ = {**self._environ, _RESULT_VARIABLE: _pipe_name(tells)}
            if restarts:
                environ[SlurmStep.task_restart.name] = f"{self._identity} {restarts}"
            end_with_this = functools.partial(end_with_parent, os.getpid())
            # What this process has inherited, as Slurm's pipe for MPI, is the program's.
            self._popen = subprocess.Popen(
                self._command, env=environ, close_fds=False, preexec_fn=end_with_this
            )
            while self._unsent:
                self._popen.send_signal(self._unsent.pop(0))
            status = self._popen.wait()
            return End(status, _HAS_ENDED in self._read_pipe())
        finally:
            with self._reading:
                self._pipe = None
            os.close(told)
            os.close(tells)

    def _forward(self, number: int, frame: object) -> None:
        if number in _ENDS_TASK:
            self._asked_to_end.set()
        if self._popen is not None and self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._popen.pid, number)
        elif self._popen is None or number in _ENDS_TASK:
            self._unsent.append(number)


def end_alike(status: int) -> NoReturn:
    """Ends this process with an exit status, or by the signal of that number below 0."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        status = 128 - status
    os._exit(status)


def tell_job_has_ended(environ: Mapping[str, str] = os.environ) -> None:
    """Tells the process that would start this program again that there is no reason to."""
    _tell(_HAS_ENDED, environ)


def tell_takes_part(environ: Mapping[str, str] = os.environ) -> None:
    """Tells the process that would end this program that it does so itself."""
    _tell(_TAKES_PART, environ)


def is_run(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether a process of this module runs this program."""
    return _find_pipe(environ) is not None


def _tell(what: bytes, environ: Mapping[str, str]) -> None:
    number = _find_pipe(environ)
    if number is not None:
        with contextlib.suppress(OSError):
            os.write(number, what)


def _find_pipe(environ: Mapping[str, str]) -> Optional[int]:
    name = environ.get(_RESULT_VARIABLE, "")
    number = name.partition(":")[0]
    # the number of a pipe may stand for another file in a program that closes what it inherits
    with contextlib.suppress(OSError):
        if number.isdecimal() and _pipe_name(int(number)) == name:
            return int(number)
    return None


def _pipe_name(fd: int) -> str:
    status = os.fstat(fd)
    return f"{fd}:{status.st_dev}:{status.st_ino}"


def _describe(status: int) -> str:
    if status > 0:
        return f"ended with exit status {status}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"
