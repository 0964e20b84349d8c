"""The processes of a step on this machine: started, watched, and ended together.

A step ends by itself, or because a task failed, a signal came, the time limit was reached, the
step was preempted, or a task asked for a requeue; what comes first decides.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.errors import LaunchError
from slurm_resolver.local.environment import NODE, is_slurm, step_environment, task_environment
from slurm_resolver.local.output import Output, OutputOptions
from slurm_resolver.slurm.time_limit import LimitSignal

GRACE_SECONDS = 5.0  # between the request to end and SIGKILL, as Slurm's KillWait
PREEMPT = signal.SIGUSR2


_PROGRESS_SECONDS = 2.0
_PR_SET_PDEATHSIG = 1
# Only the task's own process knows its id before the program starts.
_TELL_PID = ("/bin/sh", "-c", 'export SLURM_TASK_PID=$$; exec "$0" "$@"')
_libc = ctypes.CDLL(None)  # loaded here: between fork and exec it is too late


class StepOptions(NamedTuple):
    """What a step is made of; the times are in seconds.

    Attributes:
        cpus: those of each task; None where tasks are not bound.
        variables: further variables of all tasks.
        task_variables: further variables of each task; empty for none.
        hidden: variables of the launcher that its tasks do not get.
        requeue_exits: the exit statuses by which a task asks to be started again.
    """

    command: Sequence[str]
    num_tasks: int = 1
    cpus_per_task: Optional[int] = None
    name: Optional[str] = None
    directory: Optional[str] = None
    cpus: Optional[Sequence[Sequence[int]]] = None
    variables: Mapping[str, str] = {}
    task_variables: Sequence[Mapping[str, str]] = ()
    hidden: Sequence[str] = ()
    output: OutputOptions = OutputOptions()
    time_limit: Optional[int] = None
    notice: Optional[LimitSignal] = None
    preempt_after: Optional[float] = None
    kill_on_bad_exit: bool = True
    requeue_exits: Sequence[int] = ()


class Ending(NamedTuple):
    """How a step ended: its exit status, and why it is to be started again, if it is."""

    status: int
    requeue: Optional[str] = None


class LocalStep:
    """Starts the tasks, passes their output on, and ends them all together."""

    def __init__(
        self,
        options: StepOptions,
        events: queue.SimpleQueue[Tuple[Optional[int], int]],
        say: Callable[[str], None],
    ) -> None:
        """Takes where the signals arrive that this process gets, and how to tell the user."""
        self._options = options
        self._events = events
        self._say = say
        self._processes: List[subprocess.Popen[bytes]] = []
        self._alive: set[int] = set()
        self._timers: List[Tuple[float, Callable[[], None]]] = []
        self._ending = False  # whether the tasks are being ended
        self._final = False  # … for good: what they exit with then counts for nothing
        self._status = 0
        self._requeue: Optional[str] = None
        self._output: Optional[Output] = None

    def start(
        self, environ: Mapping[str, str], restarts: int = 0, progress: bool = False
    ) -> Dict[str, str]:
        """Starts every task, and returns the variables that they have alike.

        A signal that comes meanwhile is kept for `wait`.

        Raises:
            LaunchError: where an output file cannot be written, or the machine starts no more.
        """
        options = self._options
        name = options.name or Path(options.command[0]).name
        common = step_environment(options.num_tasks, options.cpus_per_task, name)
        common.update(_times(options.time_limit))
        if restarts:
            common["SLURM_RESTART_COUNT"] = str(restarts)
        common.update(options.variables)
        if options.directory is not None:
            common["PWD"] = os.path.abspath(options.directory)
        hidden = set(options.hidden)
        kept = {n: value for n, value in environ.items() if not is_slurm(n) and n not in hidden}
        # A pipe makes Python hold back what a task prints until it ends.
        kept.setdefault("PYTHONUNBUFFERED", "1")
        job, step = common["SLURM_JOB_ID"], common["SLURM_STEP_ID"]
        fields = {"j": job, "A": job, "s": step, "J": f"{job}.{step}", "N": NODE, "x": name}
        fields["u"] = common["SLURM_JOB_USER"]
        self._output = Output(options.output, options.num_tasks, fields, options.directory)
        told = time.monotonic()
        try:
            for rank in range(options.num_tasks):
                self._start_task(rank, {**kept, **common})
                if progress and time.monotonic() > told + _PROGRESS_SECONDS:
                    told = time.monotonic()
                    self._say(f"starting: {rank + 1} of {options.num_tasks} tasks")
        except BaseException as error:
            self._signal(self._alive, signal.SIGKILL)
            self._output.close()
            if isinstance(error, OSError):
                started = f"{len(self._alive)} of {options.num_tasks} tasks"
                raise LaunchError(
                    f"no more than {started} could be started ({error.strerror}): ask for fewer, "
                    "or raise the limits (ulimit -n, ulimit -u)"
                ) from error
            raise
        self._set_timers()
        return common

    def wait(self) -> Ending:
        """Waits for all tasks, and returns the worst exit status of those that ended themselves.

        A task that a signal ended counts as 128 and the signal's number.
        """
        while self._alive:
            due = min((when for when, _ in self._timers), default=None)
            timeout = None if due is None else max(0.0, due - time.monotonic())
            try:
                rank, status = self._events.get(timeout=timeout)
            except queue.Empty:
                self._fire()
                continue
            if rank is not None:
                self._on_end(rank, status)
            elif status == PREEMPT:
                self._preempt()
            else:
                self._on_signal(signal.Signals(status))
        # As at the end of a Slurm step, what the tasks left behind ends as well.
        self._signal(range(self._options.num_tasks), signal.SIGKILL)
        assert self._output is not None
        self._output.close()
        return Ending(self._status, self._requeue)

    def _start_task(self, rank: int, environ: Mapping[str, str]) -> None:
        options = self._options
        assert self._output is not None
        stdout, stderr = self._output.streams(rank)
        own = options.task_variables[rank] if options.task_variables else {}
        process = subprocess.Popen(
            [*_TELL_PID, *options.command],
            env={**environ, **own, **task_environment(rank)},
            cwd=options.directory,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=_in_the_child(options.cpus[rank] if options.cpus else None),
        )
        self._processes.append(process)
        self._alive.add(rank)
        self._output.attach(rank, process.stdout, process.stderr)  # type: ignore[arg-type]
        threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        self._events.put((rank, status if status >= 0 else 128 - status))

    def _set_timers(self) -> None:
        options = self._options
        if options.time_limit is not None:
            self._at(options.time_limit, self._on_limit)
            if options.notice is not None:
                self._at(options.time_limit - options.notice.seconds, self._announce)
        if options.preempt_after is not None:
            self._at(options.preempt_after, self._preempt)

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        self._timers.append((time.monotonic() + seconds, action))

    def _fire(self) -> None:
        now = time.monotonic()
        due = [timer for timer in self._timers if timer[0] <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for _, action in sorted(due, key=lambda timer: timer[0]):
            action()

    def _announce(self) -> None:
        notice = self._options.notice
        assert notice is not None
        self._say(f"{notice.seconds} s to the time limit: {notice.number.name} to all tasks")
        # A stopped task could not act on it; Slurm sends both as well.
        self._signal(self._alive, notice.number, signal.SIGCONT)

    def _on_limit(self) -> None:
        self._say(f"the time limit of {self._options.time_limit} s is reached: ending all tasks")
        self._status = max(self._status, 128 + signal.SIGTERM)
        self._final = True
        self._end(signal.SIGCONT, signal.SIGTERM)

    def _preempt(self) -> None:
        if self._ending:
            return
        self._say("preempted: ending all tasks")
        self._status = max(self._status, 128 + signal.SIGTERM)
        self._requeue = "the step was preempted"
        self._final = True
        self._end(signal.SIGCONT, signal.SIGTERM)

    def _on_signal(self, number: signal.Signals) -> None:
        self._say(f"{number.name}: ending all tasks")
        self._status = max(self._status, 128 + number)
        self._requeue, self._final = None, True
        # The second signal means: now.
        self._end(signal.SIGKILL if self._ending else number)

    def _on_end(self, rank: int, status: int) -> None:
        self._alive.discard(rank)
        if self._final:
            return  # it was told to end: how it did so is not its own failure
        if status in self._options.requeue_exits:
            if self._requeue is None:
                self._requeue = f"task {rank} asked for it with exit status {status}"
                if not self._ending and self._alive and self._options.kill_on_bad_exit:
                    # The others are about to end as well, and may be saving what they have.
                    self._ending = True
                    self._timers = []
                    self._at(GRACE_SECONDS, lambda: self._end(signal.SIGTERM))
            self._status = max(self._status, status)
            return
        if self._ending:
            return
        self._status = max(self._status, status)
        if status and self._alive and self._options.kill_on_bad_exit:
            self._say(f"{_failure(rank, status)}; ending the other tasks")
            self._end(signal.SIGTERM)
        elif status:
            self._say(_failure(rank, status))

    def _end(self, *numbers: signal.Signals) -> None:
        """Asks all tasks to end; those that go on are killed."""
        self._ending = True
        self._signal(self._alive, *numbers)
        self._timers = []
        self._at(GRACE_SECONDS, lambda: self._end(signal.SIGKILL))

    def _signal(self, ranks: Iterable[int], *numbers: signal.Signals) -> None:
        for rank in ranks:
            process = self._processes[rank]
            # The task leads a process group of its own: its children get the signal as well.
            with contextlib.suppress(ProcessLookupError):
                for number in numbers:
                    os.killpg(process.pid, number)


def _times(limit: Optional[int]) -> Dict[str, str]:
    """As Slurm 26.05 sets them; 22.05 does not know them, and no limit leaves nothing to say."""
    if limit is None:
        return {}
    now = int(time.time())
    return {"SLURM_JOB_START_TIME": str(now), "SLURM_JOB_END_TIME": str(now + limit)}


def _in_the_child(cpus: Optional[Sequence[int]]) -> Callable[[], None]:
    """Between fork and exec: end with the launcher, however it ends, and run on these CPUs."""
    launcher = os.getpid()

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it ended before it could be tied to
            os._exit(1)
        if cpus:
            os.sched_setaffinity(0, cpus)

    return prepare


def _failure(rank: int, status: int) -> str:
    if status > 128:
        with contextlib.suppress(ValueError):
            return f"task {rank} was ended by {signal.Signals(status - 128).name}"
    return f"task {rank} ended with exit status {status}"
