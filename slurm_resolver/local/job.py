"""A job on this machine: a step of several tasks, and the steps after it.

A step ends by itself, or because a task failed, a signal came, the time limit was reached, the step
was preempted, or a task asked for a requeue: the first of these decides. The job starts again if
Slurm would requeue it. After a failed step it starts another one, if `--restarts` allows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple

from slurm_resolver.errors import LaunchError
from slurm_resolver.local import RunOptions
from slurm_resolver.local.child_process import end_with_this
from slurm_resolver.local.environment import inherited_environment, step_environment
from slurm_resolver.local.output import Output
from slurm_resolver.training_reports import READY, SAVED, VARIABLE

MAX_REQUEUES = 5  # as Slurm's MaxBatchRequeue by default
GRACE_SECONDS = 5.0  # from the signal that asks tasks to end until SIGKILL, as Slurm's KillWait

_SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]
_SIGNALS += [signal.SIGUSR1, signal.SIGUSR2]
# A shell, as only the task's own process knows its id before the program starts.
_SET_TASK_PID = ("/bin/sh", "-c", 'export SLURM_TASK_PID=$$; exec "$0" "$@"')


class LocalJob:
    """Runs a step, and starts it again after a requeue or a failure."""

    def __init__(self, options: RunOptions, print_line: Callable[[str], None]) -> None:
        """Prepares the job, whose messages `print_line` prints; nothing is started yet."""
        self._options = options
        self._print_line = print_line
        self._first_failure = ""

    def run(self, environ: Mapping[str, str]) -> int:
        """Returns the exit status of the last step.

        Raises:
            LaunchError: if an output file cannot be written, or a task cannot be started.
        """
        return asyncio.run(self._run(inherited_environment(environ, self._options)))

    async def _run(self, inherited: Mapping[str, str]) -> int:
        options = self._options
        if not options.requeue:
            options = options._replace(requeue_status=None)
        started, restarts, steps = time.time(), 0, 0
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        while True:
            self._step = step = _Step(options, self._print_line)
            variables = step_environment(options, started, restarts, steps)
            output = Output(options)
            await step.run({**inherited, **variables}, time.time() - started, output)
            if step.requeue_reason is not None:
                if not self._may_requeue(step.requeue_reason, restarts):
                    return step.status
                started, restarts, steps = time.time(), restarts + 1, 0
            elif self._may_restart(step, steps):
                steps += 1
            else:
                return step.status
            options = options._replace(preempt_after=None, fail_after=None)

    def _on_signal(self, number: signal.Signals) -> None:
        self._step.on_signal(number)  # the one that runs now

    def _may_requeue(self, reason: str, restarts: int) -> bool:
        if not self._options.requeue:
            self._print_line("not started again: --requeue is not given")
        elif restarts == MAX_REQUEUES:
            self._print_line(f"not started again after {restarts} restarts: {reason}")
        else:
            self._print_line(f"restart {restarts + 1} of at most {MAX_REQUEUES}: {reason}")
            return True
        return False

    def _may_restart(self, step: _Step, steps: int) -> bool:
        """Decides whether the job starts a new step after this one."""
        most = self._options.restarts
        # a task that asks for a requeue has not failed, even if --requeue is not given
        if not most or step.failure is None or step.status == self._options.requeue_status:
            return False
        failure = _describe_end(*step.failure)
        self._first_failure = self._first_failure or f"{failure} in step {steps}"
        if steps < most:
            self._print_line(f"restart {steps + 1} of at most {most} (--restarts): {failure}")
            return True
        self._print_line(
            f"not started again: {failure}, but --restarts is {most}. The first failure: "
            f"{self._first_failure}"
        )
        return False


class _Step:
    """Starts the tasks, watches them, and ends them all together.

    Attributes:
        status: the highest exit status of the tasks; 128 and the number for a signal.
        requeue_reason: why the job has to be requeued; None if it is not.
        failure: the rank and the exit status of the task that failed first; None if none failed, or
            all were asked to end.
    """

    def __init__(self, options: RunOptions, print_line: Callable[[str], None]) -> None:
        self.status = 0
        self.requeue_reason: Optional[str] = None
        self.failure: Optional[Tuple[int, int]] = None
        self._options = options
        self._print_line = print_line
        self._processes: List[subprocess.Popen[bytes]] = []
        self._running: set[int] = set()  # ranks
        self._loop = asyncio.get_running_loop()
        self._timers: List[asyncio.TimerHandle] = []
        self._ended = asyncio.Event()
        self._ending = False  # the tasks have been asked to end
        self._ignore_statuses = False  # what they exit with then is not their own failure
        self._preempted = False

    async def run(self, variables: Mapping[str, str], elapsed: float, output: Output) -> None:
        """Starts every task, and waits for all; the time limit counts from `elapsed` s before."""
        with contextlib.closing(output), tempfile.NamedTemporaryFile() as self._reports:
            try:
                for rank in range(self._options.num_tasks):
                    self._start_task(rank, self._task_environment(rank, variables), output)
                self._set_timers(elapsed)
                await self._ended.wait()
                self._say_how_the_preemption_went()
            finally:
                self._cancel_timers()
                # What the tasks left running ends as well, as at the end of a Slurm step.
                self._send(range(len(self._processes)), signal.SIGKILL)

    def on_signal(self, number: signal.Signals) -> None:
        """Passes SIGUSR1 on to the tasks, preempts them on SIGUSR2, and ends them on any other."""
        if number == signal.SIGUSR1:
            self._send(self._running, number)
        elif number == signal.SIGUSR2:
            self._preempt()
        else:
            self._end_all(number.name, number)

    def _task_environment(self, rank: int, variables: Mapping[str, str]) -> Dict[str, str]:
        environ = {**variables, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        if self._options.gpu_variables is not None:
            environ.update(self._options.gpu_variables[rank])
        if self._options.preempt_after is not None:
            environ[VARIABLE] = self._reports.name
        return environ

    def _start_task(self, rank: int, environ: Dict[str, str], output: Output) -> None:
        errors = output.prepare(rank, environ)
        try:
            process = subprocess.Popen(
                end_with_this([*_SET_TASK_PID, *self._options.command], environ),
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # a process group with all that the task starts
            )
        except OSError as error:
            raise LaunchError(
                f"only {rank} of {self._options.num_tasks} tasks could be started "
                f"({error.strerror}): ask for fewer, or raise the limits (ulimit -n, ulimit -u)"
            ) from error
        self._processes.append(process)
        self._running.add(rank)
        output.copy_from(rank, process)
        threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        with contextlib.suppress(RuntimeError):  # the launcher has given up
            status = status if status >= 0 else 128 - status
            self._loop.call_soon_threadsafe(self._on_task_end, rank, status)

    def _set_timers(self, elapsed: float) -> None:
        options = self._options
        if options.time_limit is not None:
            left = options.time_limit - elapsed
            why = f"the time limit of {options.time_limit} s is reached"
            self._call_later(left, self._end_all, why)
            if options.limit_signal is not None and left > options.limit_signal.seconds:
                self._call_later(left - options.limit_signal.seconds, self._send_limit_signal)
        if options.fail_after is not None:
            self._call_later(options.fail_after[0], self._fail_as_planned, options.fail_after[1])
        if options.preempt_after is not None:
            self._preempt_in_training(options.preempt_after)

    def _call_later(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        self._timers.append(self._loop.call_later(seconds, action, *arguments))

    def _send_limit_signal(self) -> None:
        assert self._options.limit_signal is not None
        number, seconds = self._options.limit_signal
        self._print_line(f"{seconds} s to the time limit: sending {number.name} to all tasks")
        # A stopped task could not handle it; Slurm sends both as well.
        self._send(self._running, number, signal.SIGCONT)

    def _fail_as_planned(self, rank: int) -> None:
        if rank in self._running:
            self._print_line(f"killing task {rank} (--fail-after)")
            self._send([rank], signal.SIGKILL)

    def _preempt(self) -> None:
        if not self._ending:
            self._end_all("preempted")
            self._preempted = True
            self.requeue_reason = "the step was preempted"

    def _preempt_in_training(self, seconds: float) -> None:
        """Preempts the tasks this long after their training's first step."""
        if self._reported(READY):
            self._call_later(seconds, self._preempt)
        else:
            self._call_later(0.1, self._preempt_in_training, seconds)

    def _reported(self, event: str) -> bool:
        self._reports.seek(0)
        return event.encode() in self._reports.read().split()

    def _say_how_the_preemption_went(self) -> None:
        """Reports a planned preemption that did not come, or that saved nothing."""
        if self._preempted and self._reported(READY) and not self._reported(SAVED):
            self._print_line("nothing was saved after the preemption")
        elif self._options.preempt_after is not None and not self._ending:
            why = "the tasks ended before --preempt-after"
            if not self._reported(READY):
                why = "no task has reported a first step (BackupAndResume, ResumableLoop and "
                why += "termination_config do; kill -USR2 preempts any program)"
            self._print_line(f"not preempted: {why}")

    def _on_task_end(self, rank: int, status: int) -> None:
        self._running.discard(rank)
        if not self._running:
            self._ended.set()
        asks_for_requeue = status == self._options.requeue_status
        if self._ignore_statuses or (self._ending and not asks_for_requeue):
            return
        self.status = max(self.status, status)
        if asks_for_requeue and self.requeue_reason is None:
            self.requeue_reason = f"task {rank} asked for it with exit status {status}"
            if not self._ending and self._options.kill_on_bad_exit:
                # The others are about to end as well, and may be saving a checkpoint.
                self._ending = True
                self._cancel_timers()
                self._call_later(GRACE_SECONDS, self._end_tasks, signal.SIGTERM)
        elif status and not asks_for_requeue:
            self.failure = self.failure or (rank, status)
            end = _describe_end(rank, status)
            if self._running and self._options.kill_on_bad_exit:
                self._print_line(f"{end}; ending the other tasks")
                self._end_tasks(signal.SIGTERM)
            else:
                self._print_line(end)

    def _end_all(self, why: str, number: int = signal.SIGTERM) -> None:
        """Ends all tasks, whatever they exit with."""
        self._print_line(f"{why}: ending all tasks")
        self.status = max(self.status, 128 + number)
        self.requeue_reason = self.failure = None
        self._ignore_statuses = True
        # A second signal ends them at once.
        self._end_tasks(signal.SIGKILL if self._ending else number)

    def _end_tasks(self, number: int) -> None:
        """Asks all tasks to end, and kills those that have not ended after a while."""
        self._ending = True
        self._send(self._running, signal.SIGCONT, number)  # a stopped task would not end
        self._cancel_timers()
        self._call_later(GRACE_SECONDS, self._end_tasks, signal.SIGKILL)

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _send(self, ranks: Iterable[int], *signals: int) -> None:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                for number in signals:
                    os.killpg(self._processes[rank].pid, number)


def _describe_end(rank: int, status: int) -> str:
    if status > 128:
        with contextlib.suppress(ValueError):
            return f"task {rank} was ended by {signal.Signals(status - 128).name}"
    return f"task {rank} ended with exit status {status}"
