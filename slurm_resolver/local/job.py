"""A Slurm job on this machine: a step of several tasks, and the steps after it.

A step ends by itself, or because a task failed, a signal came, the time limit was reached, the step
was preempted, or a task asked for a requeue: the first of these decides. The job starts again if
Slurm would requeue it. After a failed step it starts another one, if `--restarts` allows it.
"""

from __future__ import annotations

import os
from asyncio import Event, get_running_loop
from collections.abc import Iterable
from contextlib import closing, suppress
from signal import SIGCHLD, SIGCONT, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2, Signals
from subprocess import DEVNULL, PIPE, Popen
from tempfile import NamedTemporaryFile
from time import time
from typing import Any, Callable

from slurm_resolver.errors import LaunchError
from slurm_resolver.local import RunOptions
from slurm_resolver.local.child_process import end_with_this
from slurm_resolver.local.environment import step_environment
from slurm_resolver.local.output import Output, print_line
from slurm_resolver.local.run_events import VARIABLE
from slurm_resolver.signals import PASSED_ON, REQUEUE_STATUS, shell_status, signal_name
from slurm_resolver.slurm.variable_types import Environ
from slurm_resolver.timeouts import Timeouts
from slurm_resolver.wording import counted

MAX_REQUEUES = 5  # as Slurm's MaxBatchRequeue by default


async def run_job(options: RunOptions) -> int:
    """Runs a step, and others after a requeue or a failure; returns the last one's exit status.

    Raises:
        LaunchError: if a task cannot be started.
    """
    started = time()
    requeues = 0
    steps = 0
    while True:
        step = _Step(options)
        for number in (SIGCHLD, *PASSED_ON):
            get_running_loop().add_signal_handler(number, step.on_signal, number)
        await step.run(
            step_environment(
                options,
                started,
                requeues,
                steps,
            ),
            elapsed=time() - started,
        )
        if step.requeue_reason:
            if not options.requeue:
                print_line("not started again: --requeue is not given")
                break
            count = requeues
            most = MAX_REQUEUES
            started = time()
            requeues += 1
            steps = 0
        # A task that asks for a requeue has not failed, even if --requeue is not given.
        elif step.failure and options.restarts and step.status != REQUEUE_STATUS:
            count = steps
            most = options.restarts
            steps += 1
        else:
            break
        reason = step.requeue_reason or step.failure
        if count == most:
            print_line(f"not started again after {counted(count, 'restart')}: {reason}")
            break
        print_line(f"restart {count + 1} of at most {most}: {reason}")
        options = options._replace(preempt_after=None, fail_after=None)
    return step.status


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
        output = Output(self._options.num_tasks, self._options.label)
        with closing(output), NamedTemporaryFile() as self._reports:
            try:
                for rank in range(self._options.num_tasks):
                    self._start_task(rank, variables, output)
                self._set_timers(elapsed)
                await self._ended.wait()
                if self._options.preempt_after is not None and not self._ending:
                    print_line(
                        "not preempted: the tasks ended before --preempt-after, which counts from "
                        "the first step that BackupAndResume, ResumableLoop or termination_config "
                        "reports (SIGUSR2 to slurm-resolver run preempts any program)"
                    )
            finally:
                # What the tasks left running ends as well, as at the end of a Slurm step.
                self._send(range(len(self._processes)), SIGKILL)

    def on_signal(self, number: Signals) -> None:
        """Passes SIGUSR1 on to the tasks, preempts them on SIGUSR2, and ends them on any other.

        SIGCHLD says that a task has ended.
        """
        if number == SIGCHLD:
            self._find_ended()
        elif number == SIGUSR1:
            self._send(self._running, number)
        elif number == SIGUSR2:
            self._preempt()
        else:
            self._end_all(number.name, number)

    def _find_ended(self) -> None:
        for rank in sorted(self._running):
            status = self._processes[rank].poll()
            if status is not None:
                self._on_task_end(rank, shell_status(status))

    def _start_task(self, rank: int, variables: Environ, output: Output) -> None:
        environ = {
            **variables,
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank),
        }
        if self._options.preempt_after is not None:
            environ[VARIABLE] = self._reports.name
        try:
            process = Popen(
                end_with_this(self._options.command),
                env=environ,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                start_new_session=True,  # a process group with all that the task starts
            )
        except OSError as error:
            raise LaunchError(
                f"only {rank} of {self._options.num_tasks} tasks could be started "
                f"({error.strerror}): ask for fewer, or raise the limits (ulimit -n, ulimit -u)"
            ) from error
        self._processes.append(process)
        self._running.add(rank)
        output.copy(rank, process)

    def _set_timers(self, elapsed: float) -> None:
        """Plans the time limit, the signal before it, and what the user asks to simulate."""
        options = self._options
        if options.time_limit is not None:
            left = options.time_limit - elapsed
            self._call_later(
                left, self._end_all, f"the time limit of {options.time_limit} s is reached"
            )
            if options.limit_signal:
                number, seconds = options.limit_signal
                if left > seconds:
                    self._call_later(left - seconds, self._send_limit_signal, number, seconds)
        if options.fail_after is not None:
            self._call_later(options.fail_after, self._fail_as_planned, options.num_tasks - 1)
        if options.preempt_after is not None:
            self._preempt_in_training(options.preempt_after)

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
            self._end_all("preempted")
            self.requeue_reason = "the step was preempted"

    def _preempt_in_training(self, seconds: float) -> None:
        """Preempts the tasks this long after their training's first step."""
        if os.stat(self._reports.name).st_size:
            self._call_later(seconds, self._preempt)
        else:
            self._call_later(0.1, self._preempt_in_training, seconds)

    def _on_task_end(self, rank: int, status: int) -> None:
        """Takes the end of a task, and ends the others if it has failed or asks for a requeue."""
        self._running.discard(rank)
        if not self._running:
            self._ended.set()
        asks_for_requeue = self._options.requeue and status == REQUEUE_STATUS
        if self._ignore_statuses or (self._ending and not asks_for_requeue):
            return
        self.status = max(self.status, status)
        ends_others = self._options.kill_on_bad_exit and not self._ending
        if asks_for_requeue and not self.requeue_reason:
            self.requeue_reason = f"task {rank} asked for it with exit status {status}"
            if ends_others:  # by themselves, first: they may be saving a checkpoint
                self._end_tasks_after_grace(SIGTERM)
        elif status and not asks_for_requeue:
            end = _describe_end(rank, status)
            self.failure = self.failure or end
            if self._running and ends_others:
                print_line(f"{end}; ending the other tasks")
                self._end_tasks(SIGTERM)
            else:
                print_line(end)

    def _end_all(self, why: str, number: int = SIGTERM) -> None:
        """Ends all tasks, whatever they exit with."""
        print_line(f"{why}: ending all tasks")
        self.status = max(self.status, 128 + number)
        self.requeue_reason = ""
        self.failure = ""
        self._ignore_statuses = True
        # A second signal ends them at once.
        self._end_tasks(SIGKILL if self._ending else number)

    def _end_tasks(self, number: int) -> None:
        """Asks all tasks to end, and kills those that have not ended after a while."""
        if self._running:
            self._send(self._running, SIGCONT, number)  # a stopped task would not end
            self._end_tasks_after_grace(SIGKILL)

    def _end_tasks_after_grace(self, number: int) -> None:
        """Ends the tasks that have not ended by themselves in some seconds."""
        self._ending = True
        get_running_loop().call_later(Timeouts.local_kill, self._end_tasks, number)

    def _send(self, ranks: Iterable[int], *numbers: int) -> None:
        """Sends signals to tasks, with all processes that they have started."""
        for rank in ranks:
            with suppress(ProcessLookupError):
                for number in numbers:
                    os.killpg(self._processes[rank].pid, number)


def _describe_end(rank: int, status: int) -> str:
    name = signal_name(status - 128)
    if name:
        return f"task {rank} was ended by {name}"
    return f"task {rank} ended with exit status {status}"
