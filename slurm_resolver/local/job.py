"""A Slurm job on this machine: a step of several tasks, and the steps after it.

A step ends by itself, or because a task failed, a signal came, the time limit was reached, the step
was preempted, or a task asked for a requeue: the first of these decides. The job starts again if
Slurm would requeue it. After a failed step it starts another one, if `--restarts` allows it.
"""

from __future__ import annotations

import os
import sys
from asyncio import Event, get_running_loop
from collections.abc import Iterable
from contextlib import suppress
from signal import SIGCHLD, SIGCONT, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2, Signals
from subprocess import DEVNULL, PIPE, Popen
from tempfile import NamedTemporaryFile
from threading import Thread
from time import monotonic, time
from typing import Any, Callable

from slurm_resolver.errors import LaunchError
from slurm_resolver.local import RunOptions, output
from slurm_resolver.local.environment import step_environment
from slurm_resolver.local.output import copy_output, print_line
from slurm_resolver.local.run_events import VARIABLE
from slurm_resolver.signals import PASSED_ON, REQUEUE_STATUS, shell_status, signal_name
from slurm_resolver.slurm.variable_types import Environ
from slurm_resolver.timeouts import Timeouts
from slurm_resolver.wording import counted

MAX_REQUEUES = 5  # as Slurm's MaxBatchRequeue by default
# Starts a task's program such that it does not outlive the launcher, however that ends. It runs in
# the place of a function between fork and exec (`preexec_fn`), which is not safe in a process that
# has threads. 1 is PR_SET_PDEATHSIG. Python ignores two signals: they are restored. Only the task's
# own process knows its id before the program starts.
_START = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
os.environ["SLURM_TASK_PID"] = str(os.getpid())
if os.getppid() == int(sys.argv[1]):
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:  # such as a script without #!, which srun does not start either
        sys.exit(f"slurm-resolver run: {sys.argv[2]!r} cannot be started: {error.strerror}")
"""


async def run_job(options: RunOptions) -> int:
    """Runs a step, and others after a requeue or a failure; returns the last one's exit status.

    Raises:
        LaunchError: as `step_environment`; if a task cannot be started.
    """
    started = time()
    requeues = 0
    steps = 0
    while True:
        step = _Step(options)
        await step.run(step_environment(options, started, requeues, steps), time() - started)
        if step.requeue_reason:
            if not options.requeue:
                print_line("not started again: --requeue is not given")
                return step.status
            count = requeues
            most = MAX_REQUEUES
            started = time()
            requeues += 1
            steps = 0
        elif step.failure and options.restarts:
            count = steps
            most = options.restarts
            steps += 1
        else:
            return step.status
        reason = step.requeue_reason or step.failure
        if count == most:
            print_line(f"not started again after {counted(count, 'restart')}: {reason}")
            return step.status
        print_line(f"restart {count + 1} of at most {most}: {reason}")
        options = options._replace(preempt_after=None, fail_after=None)


class _Step:
    """Starts the tasks, watches them, and ends them all together.

    Attributes:
        status: the highest exit status of the tasks; 128 and the number for a signal.
        requeue_reason: why the job is to start anew; "" if it is not.
        failure: how the task that failed first ended; "" if none failed, or all were asked to end.
    """

    status = 0
    requeue_reason = ""
    failure = ""
    # whether the tasks have been asked to end
    _ending = False
    # whether what they exit with is not their own failure
    _ignore_statuses = False

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        # every task that has been started, by rank
        self._processes: list[Popen[bytes]] = []
        # the ranks of those that have not ended
        self._running: set[int] = set()
        # set when the last task has ended
        self._ended = Event()

    async def run(self, variables: Environ, elapsed: float) -> None:
        """Starts every task, and waits for all; the time limit counts from `elapsed` s before."""
        options = self._options
        self._handle_signals()
        threads: list[Thread] = []
        with NamedTemporaryFile() as reports:
            if options.preempt_after is not None:
                variables = {**variables, VARIABLE: reports.name}
            try:
                for rank in range(options.ntasks):
                    threads += self._start_task(rank, variables)
                self._set_timers(elapsed)
                if options.preempt_after is not None:
                    self._preempt_in_training(options.preempt_after, reports.name)
                await self._ended.wait()
                if options.preempt_after is not None and not self._ending:
                    print_line(
                        "not preempted: the tasks ended before --preempt-after, which counts from "
                        "the first step that BackupAndResume, ResumableLoop or termination_config "
                        "reports (SIGUSR2 to slurm-resolver run preempts any program)"
                    )
            finally:
                # What the tasks left running ends as well, as at the end of a Slurm step.
                self._send(range(len(self._processes)), SIGKILL)
                until = monotonic() + 1.0  # a process that has left its group may keep a pipe
                for thread in threads:
                    thread.join(timeout=max(0.0, until - monotonic()))
                    while output.lock.locked():  # until the reader of the screen reads on
                        thread.join(timeout=1.0)

    def _start_task(self, rank: int, variables: Environ) -> list[Thread]:
        """Starts a task, and returns the threads that copy its output."""
        options = self._options
        ids = dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID"), str(rank))
        try:
            process = Popen(
                [sys.executable, "-I", "-S", "-c", _START, str(os.getpid()), *options.command],
                env={**variables, **ids},
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                start_new_session=True,  # a process group with all that the task starts
            )
        except OSError as error:
            raise LaunchError(
                f"only {rank} of {options.ntasks} tasks could be started ({error.strerror}): "
                "ask for fewer, or raise the limits (ulimit -n, ulimit -u)"
            ) from error
        self._processes.append(process)
        self._running.add(rank)
        label = f"{rank:{len(str(options.ntasks - 1))}d}: " if options.label else ""
        return copy_output(process, label)

    def _handle_signals(self) -> None:
        """Ends the tasks at a signal, passes SIGUSR1 on to them, and preempts them on SIGUSR2."""
        handle = get_running_loop().add_signal_handler
        for number in PASSED_ON:
            handle(number, self._end_all, number.name, number)
        handle(SIGCHLD, self._find_ended)
        handle(SIGUSR1, self._send, self._running, SIGUSR1)
        handle(SIGUSR2, self._preempt)

    def _set_timers(self, elapsed: float) -> None:
        """Plans the time limit, the signal before it, and what the user asks to simulate."""
        options = self._options
        if options.time_limit is not None:
            left = options.time_limit - elapsed
            why = f"the time limit of {options.time_limit} s is reached"
            self._call_later(left, self._end_all, why)
            if options.limit_signal:
                number, seconds = options.limit_signal
                if left > seconds:
                    self._call_later(left - seconds, self._send_limit_signal, number, seconds)
        if options.fail_after is not None:
            self._call_later(options.fail_after, self._fail_as_planned, options.ntasks - 1)

    def _call_later(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        """Plans what happens then, unless the tasks have ended, or are ending."""

        def act() -> None:
            if self._running and not self._ending:
                action(*arguments)

        get_running_loop().call_later(seconds, act)

    def _send_limit_signal(self, number: Signals, seconds: int) -> None:
        """Sends the signal of --signal."""
        print_line(f"{seconds} s to the time limit: sending {number.name} to all tasks")
        # A stopped task could not handle it; Slurm sends both as well.
        self._send(self._running, number, SIGCONT)

    def _fail_as_planned(self, rank: int) -> None:
        """Kills the task of --fail-after, unless it has ended."""
        if rank in self._running:
            print_line(f"killing task {rank} (--fail-after)")
            self._send([rank], SIGKILL)

    def _preempt(self) -> None:
        """Ends all tasks, and has the job start anew, unless they end already."""
        if not self._ending:
            self._end_all("preempted", requeue_reason="the step was preempted")

    def _preempt_in_training(self, seconds: float, reports: str) -> None:
        """Preempts the tasks this long after their training's first step, which is in a file."""
        if os.stat(reports).st_size:
            self._call_later(seconds, self._preempt)
        else:
            self._call_later(0.1, self._preempt_in_training, seconds, reports)

    def _find_ended(self) -> None:
        for rank in sorted(self._running):
            status = self._processes[rank].poll()
            if status is not None:
                self._running.discard(rank)
                self._on_task_end(rank, shell_status(status))
        if not self._running:
            self._ended.set()

    def _on_task_end(self, rank: int, status: int) -> None:
        """Takes the end of a task, and ends the others if it has failed or asks for a requeue."""
        asks_for_requeue = self._options.requeue and status == REQUEUE_STATUS
        if not status or self._ignore_statuses or (self._ending and not asks_for_requeue):
            return
        self.status = max(self.status, status)
        name = signal_name(status - 128)
        end = f"was ended by {name}" if name else f"ended with exit status {status}"
        ends_others = self._running and self._options.kill_on_bad_exit and not self._ending
        if asks_for_requeue:
            reason = f"task {rank} asked for it with exit status {status}"
            self.requeue_reason = self.requeue_reason or reason
            if ends_others:  # by themselves, first: they may be saving a checkpoint
                self._end_tasks(0, SIGTERM, SIGKILL)
            return
        print_line(f"task {rank} {end}{'; ending the other tasks' if ends_others else ''}")
        if status != REQUEUE_STATUS:  # which is no failure, even if --requeue is not given
            self.failure = self.failure or f"task {rank} {end}"
        if ends_others:
            self._end_tasks(SIGTERM, SIGKILL)

    def _end_all(self, why: str, number: int = SIGTERM, requeue_reason: str = "") -> None:
        """Ends all tasks, whatever they exit with."""
        print_line(f"{why}: ending all tasks")
        self.status = max(self.status, 128 + number)
        self.requeue_reason = requeue_reason
        self.failure = ""
        # A second signal ends them at once.
        first = SIGKILL if self._ignore_statuses else number
        self._ignore_statuses = True
        self._end_tasks(first, SIGKILL)

    def _end_tasks(self, *numbers: int) -> None:
        """Sends signals to the tasks, one after the other, until all have ended."""
        self._ending = True
        if self._running and numbers:
            self._send(self._running, SIGCONT, numbers[0])  # a stopped task would not end
            get_running_loop().call_later(Timeouts.local_kill, self._end_tasks, *numbers[1:])

    def _send(self, ranks: Iterable[int], *numbers: int) -> None:
        """Sends signals to tasks, with all processes that they have started."""
        for rank in ranks:
            with suppress(ProcessLookupError):
                for number in numbers:
                    os.killpg(self._processes[rank].pid, number)
