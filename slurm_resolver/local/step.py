"""The tasks of a step on this machine: started, watched, and ended together.

A step ends by itself, or because a task failed, a signal came, the time limit was reached, the
step was preempted, or a task asked for a requeue. The first of these decides.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Tuple

from slurm_resolver.errors import LaunchError
from slurm_resolver.local.environment import (
    NODE,
    is_slurm_variable,
    step_environment,
    task_environment,
)
from slurm_resolver.local.output import Output
from slurm_resolver.local.planned_preemption import TRAINING, TrainingReports
from slurm_resolver.local.process import TaskProcess, describe_end
from slurm_resolver.local.step_options import JobStart, StepOptions, StepResult

GRACE_SECONDS = 5.0  # from the signal that asks tasks to end until SIGKILL, as Slurm's KillWait
PREEMPT = signal.SIGUSR2
FORWARDED = (signal.SIGUSR1,)  # to the tasks, which go on: as srun does

_PROGRESS_SECONDS = 2.0
_USUAL_START = 60.0  # seconds that a first step may take before anybody wonders
_WHO_TELLS = (
    "(BackupAndResume, ResumableLoop and termination_config tell of it; S:start counts from the "
    "start of any program)"
)


class LocalStep:
    """Starts the tasks, copies their output, and ends them all together."""

    def __init__(
        self,
        options: StepOptions,
        events: queue.Queue[Tuple[Optional[int], int]],
        print_line: Callable[[str], None],
    ) -> None:
        """Prepares the step; nothing is started yet.

        Args:
            events: what happens: (rank, exit status) of a task that ended, (None, signal) of a
                signal to this process.
            print_line: prints a line for the user.
        """
        self._options = options
        self._events = events
        self._print_line = print_line
        self._processes: List[TaskProcess] = []
        self._running: set[int] = set()  # ranks
        self._timers: List[Tuple[float, Callable[[], None]]] = []
        self._ending = False  # the tasks have been asked to end
        self._ignore_statuses = False  # what they exit with then is not their own failure
        self._status = 0
        self._requeue_reason: Optional[str] = None
        self._preempted = False
        self._failure: Optional[str] = None
        self._failed: Optional[Tuple[int, int]] = None
        self._output: Optional[Output] = None
        self._reports: Optional[TrainingReports] = None

    def start(
        self, environ: Mapping[str, str], job: JobStart, progress: bool = False
    ) -> Dict[str, str]:
        """Starts every task, and returns the variables that are the same in all of them.

        A signal that comes meanwhile is kept for `wait`.

        Raises:
            LaunchError: where an output file cannot be written, or the machine cannot start so
                many processes.
        """
        options = self._options
        variables = self._step_variables(job)
        removed = set(options.removed_variables)
        inherited = {
            name: value
            for name, value in environ.items()
            if not is_slurm_variable(name) and name not in removed
        }
        # Python would keep back what a task prints into a pipe until the task ends.
        inherited.setdefault("PYTHONUNBUFFERED", "1")
        self._output = self._open_output(variables)
        if options.preemption is not None:
            self._reports = TrainingReports(self._events)
            inherited.update(self._reports.variables)
        last_progress = time.monotonic()
        try:
            for rank in range(options.num_tasks):
                self._start_task(rank, self._output, {**inherited, **variables})
                if progress and time.monotonic() > last_progress + _PROGRESS_SECONDS:
                    last_progress = time.monotonic()
                    self._print_line(f"starting: {rank + 1} of {options.num_tasks} tasks")
        except BaseException as error:
            self._send(self._running, signal.SIGKILL)
            self._output.close()
            if self._reports is not None:
                self._reports.close()
            if isinstance(error, OSError):
                raise LaunchError(
                    f"only {len(self._running)} of {options.num_tasks} tasks could be started "
                    f"({error.strerror}): ask for fewer, or raise the limits (ulimit -n, ulimit -u)"
                ) from error
            raise
        self._set_timers(time.monotonic() - job.clock)
        return variables

    def wait(self) -> StepResult:
        """Waits for all tasks; the status is the worst of those that ended by themselves.

        A task that a signal ended counts as 128 and the signal's number.
        """
        while self._running:
            due = min((when for when, _ in self._timers), default=None)
            timeout = None if due is None else max(0.0, due - time.monotonic())
            try:
                rank, status = self._events.get(timeout=timeout)
            except queue.Empty:
                self._run_due_timers()
                continue
            if rank is not None:
                self._on_task_end(rank, status)
            elif status == PREEMPT:
                self._on_preemption()
            elif status == TRAINING:
                self._on_training()
            elif status in FORWARDED:
                self._send(self._running, signal.Signals(status))
            else:
                self._on_signal(signal.Signals(status))
        # What the tasks left running ends as well, as at the end of a Slurm step.
        self._send(range(self._options.num_tasks), signal.SIGKILL)
        assert self._output is not None
        self._output.close()
        self._end_reports()
        return StepResult(self._status, self._requeue_reason, self._failure, self._failed)

    def _step_variables(self, job: JobStart) -> Dict[str, str]:
        options = self._options
        name = options.job_name or Path(options.command[0]).name
        variables = step_environment(
            options.num_tasks,
            options.cpus_per_task,
            name,
            options.time_limit,
            job.started,
            job.steps,
        )
        if job.restarts:
            variables["SLURM_RESTART_COUNT"] = str(job.restarts)
        variables.update(options.variables)
        if options.directory is not None:
            variables["PWD"] = os.path.abspath(options.directory)
        return variables

    def _open_output(self, variables: Mapping[str, str]) -> Output:
        options = self._options
        job_id, step_id = variables["SLURM_JOB_ID"], variables["SLURM_STEP_ID"]
        name, user = variables["SLURM_JOB_NAME"], variables["SLURM_JOB_USER"]
        fields = {"j": job_id, "A": job_id, "s": step_id, "J": f"{job_id}.{step_id}"}
        fields.update({"N": NODE, "x": name, "u": user, "S": variables["SLURM_JOB_SLUID"]})
        return Output(options.output, options.num_tasks, fields, options.directory, options.listen)

    def _start_task(self, rank: int, output: Output, environ: Mapping[str, str]) -> None:
        options = self._options
        stdout, stderr = output.streams(rank)
        own = options.task_variables[rank] if options.task_variables else {}
        process = TaskProcess(
            options.command,
            {**environ, **own, **task_environment(rank)},
            options.directory,
            options.cpus[rank] if options.cpus else None,
            stdout,
            stderr,
            options.wait_for_children,
        )
        self._processes.append(process)
        self._running.add(rank)
        output.copy_from(rank, process.stdout, process.stderr)
        threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def _watch(self, rank: int, process: TaskProcess) -> None:
        self._events.put((rank, process.wait()))

    def _set_timers(self, elapsed: float) -> None:
        """Sets what happens at its time, in a job that has started so many seconds ago."""
        options = self._options
        if options.time_limit is not None:
            left = options.time_limit - elapsed
            self._add_timer(left, self._on_time_limit)
            if options.limit_signal is not None and left > options.limit_signal.seconds:
                self._add_timer(left - options.limit_signal.seconds, self._send_limit_signal)
        if options.failure is not None:
            self._add_timer(options.failure.seconds, self._fail_as_planned)
        planned = options.preemption
        if planned is not None and planned.from_start:
            self._add_timer(planned.seconds, self._on_preemption)
        elif planned is not None:
            self._add_timer(planned.seconds + _USUAL_START, self._say_waiting)

    def _add_timer(self, seconds: float, action: Callable[[], None]) -> None:
        self._timers.append((time.monotonic() + seconds, action))

    def _run_due_timers(self) -> None:
        now = time.monotonic()
        due = [timer for timer in self._timers if timer[0] <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for _, action in sorted(due, key=lambda timer: timer[0]):
            action()

    def _send_limit_signal(self) -> None:
        assert self._options.limit_signal is not None
        number, seconds = self._options.limit_signal
        self._print_line(f"{seconds} s to the time limit: sending {number.name} to all tasks")
        # A stopped task could not handle it; Slurm sends both as well.
        self._send(self._running, number, signal.SIGCONT)

    def _on_time_limit(self) -> None:
        limit = self._options.time_limit
        self._print_line(f"the time limit of {limit} s is reached: ending all tasks")
        self._status = max(self._status, 128 + signal.SIGTERM)
        self._ignore_statuses, self._failure = True, None
        self._end_tasks(signal.SIGCONT, signal.SIGTERM)

    def _fail_as_planned(self) -> None:
        assert self._options.failure is not None
        rank = self._options.failure.rank
        if rank in self._running and not self._ending:
            self._print_line(f"killing task {rank} (--fail-after)")
            self._send([rank], signal.SIGKILL)

    def _on_training(self) -> None:
        planned = self._options.preemption
        if planned is not None and not planned.from_start and not self._ending:
            self._add_timer(planned.seconds, self._on_preemption)

    def _say_waiting(self) -> None:
        if self._reports is not None and not self._reports.ready:
            self._print_line(f"--preempt-after waits for the first step {_WHO_TELLS}")

    def _end_reports(self) -> None:
        """Says what a planned preemption has shown, where it has shown nothing."""
        if self._reports is None:
            return
        self._reports.close()
        if self._preempted:
            if self._reports.ready and not self._reports.saved:
                self._print_line("nothing was saved after the preemption")
        elif self._reports.ready:
            self._print_line("not preempted: the tasks ended before --preempt-after")
        elif not self._ending:
            self._print_line(f"not preempted: --preempt-after has heard of no step {_WHO_TELLS}")

    def _on_preemption(self) -> None:
        if self._ending:
            return
        self._preempted = True
        self._print_line("preempted: ending all tasks")
        self._status = max(self._status, 128 + signal.SIGTERM)
        self._requeue_reason = "the step was preempted"
        self._ignore_statuses = True
        self._end_tasks(signal.SIGCONT, signal.SIGTERM)

    def _on_signal(self, number: signal.Signals) -> None:
        self._print_line(f"{number.name}: ending all tasks")
        self._status = max(self._status, 128 + number)
        self._requeue_reason, self._ignore_statuses = None, True
        # After a second signal nobody wants to wait.
        self._end_tasks(signal.SIGKILL if self._ending else number)

    def _on_task_end(self, rank: int, status: int) -> None:
        self._running.discard(rank)
        if self._ignore_statuses:
            return
        if status in self._options.requeue_statuses:
            if self._requeue_reason is None:
                self._requeue_reason = f"task {rank} asked for it with exit status {status}"
                if not self._ending and self._running and self._options.kill_on_bad_exit:
                    # The others are about to end as well, and may be saving a checkpoint.
                    self._ending = True
                    self._timers = []
                    self._add_timer(GRACE_SECONDS, lambda: self._end_tasks(signal.SIGTERM))
            self._status = max(self._status, status)
            return
        if self._ending:
            return
        self._status = max(self._status, status)
        if status and self._failure is None:
            self._failure, self._failed = describe_end(rank, status), (rank, status)
        if status and self._running and self._options.kill_on_bad_exit:
            self._print_line(f"{describe_end(rank, status)}; ending the other tasks")
            self._end_tasks(signal.SIGTERM)
        elif status:
            self._print_line(describe_end(rank, status))

    def _end_tasks(self, *signals: signal.Signals) -> None:
        """Asks all tasks to end, and kills those that have not ended after a while."""
        self._ending = True
        self._send(self._running, *signals)
        self._timers = []
        self._add_timer(GRACE_SECONDS, lambda: self._end_tasks(signal.SIGKILL))

    def _send(self, ranks: Iterable[int], *signals: signal.Signals) -> None:
        for rank in ranks:
            self._processes[rank].send(*signals)
