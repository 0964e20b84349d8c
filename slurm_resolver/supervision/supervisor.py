"""The loop: a step on healthy nodes, and one more after it has failed, where that is worth it."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.preemption.preempted import is_preempted
from slurm_resolver.preemption.requeue import REQUEUE_STATUS, job_id_for_scontrol
from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.hostlist_compress import compress_hostlist
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.supervision.batch_host import Watch
from slurm_resolver.supervision.components import Chosen, command, components, first_ranks
from slurm_resolver.supervision.nodes import Nodes, choose, nodes_of
from slurm_resolver.supervision.policy import (
    Attempt,
    Stop,
    is_error,
    job_is_ending,
    same_again,
    why_not_again,
)
from slurm_resolver.supervision.rank_logs import RankLogs
from slurm_resolver.supervision.say import say
from slurm_resolver.supervision.step import EndedStep, Signals, run_step

_ANSWER_SECONDS = 60.0  # scontrol itself waits as long for a busy controller
_CONTROLLER_SECONDS = 600.0  # how long the controller may be down, as it is when it is restarted
_STEP_END_SECONDS = 180.0  # more than KillWait and UnkillableStepTimeout of most sites
_POLL_SECONDS = 0.5
_LOOK_SECONDS = 5.0  # in a long pause, whether the job still has time


class SupervisorOptions(NamedTuple):
    """What the user asks for; times are in seconds.

    Attributes:
        command: srun, its options, and the program.
        nodes: how many nodes the step has; None for all of the job's when this starts.
        min_nodes: with how many it may go on; None for `nodes`.
        tasks_per_node: tasks on each.
        ps_nodes, ps_tasks: nodes and tasks of the second component of a heterogeneous job; None
            for a job without.
        requeue: whether the batch file requeues the job when this ends with REQUEUE_STATUS.
        pause: from the end of a step to the next start.
        least_time: to the job's time limit, so that a start is worth it.
        watch: how often another node asks whether this one lives; 0 for never.
        log_dir: the folder for a log of each task; None for none.
    """

    command: Sequence[str]
    restarts: int = 3
    nodes: Optional[int] = None
    min_nodes: Optional[int] = None
    tasks_per_node: int = 1
    ps_nodes: Optional[int] = None
    ps_tasks: Optional[int] = None
    requeue: bool = False
    pause: float = 2.0
    least_time: float = 60.0
    watch: float = 30.0
    log_dir: Optional[str] = None


class Supervisor:
    """Runs the step, again and again where that is worth it."""

    def __init__(self, options: SupervisorOptions, step: SlurmStep, signals: Signals) -> None:
        """Takes the variables of the batch file, whose `job_id` is set.

        Raises:
            OSError: where `log_dir` cannot be made.
        """
        self._options = options
        self._logs = None if options.log_dir is None else RankLogs(Path(options.log_dir))
        self._job_id = job_id_for_scontrol(step) or ""
        # of an array's task too: that of the job itself, as its steps have it; by component
        self._own_job_ids = [step.job_id or ""]
        self._job_restarts = step.restart_count or 0
        self._signals = signals
        self._attempts: List[Attempt] = []
        self._suspects: Dict[str, str] = {}  # by node why it is one
        self._seen: Tuple[str, ...] = ()  # the nodes of the job when this began
        self._wanted = components(
            options.nodes,
            options.min_nodes,
            options.tasks_per_node,
            options.ps_nodes,
            options.ps_tasks,
        )
        self._watch = Watch(
            self._own_job_ids[0],
            step.node_name,
            options.requeue,
            options.watch,
            heterogeneous=len(self._wanted) > 1,
        )

    def run(self) -> int:
        """Returns the exit status: 0, that of the first failure, or REQUEUE_STATUS."""
        try:
            return self._run()
        finally:
            self._watch.stop()

    def _run(self) -> int:
        parts, stop = self._look()
        self._seen = _names(part.names for part in parts)
        self._wanted = [
            one._replace(nodes=one.nodes or len(part.names))
            for one, part in zip(self._wanted, parts)
        ]
        chosen: Chosen = ()
        while True:
            before, chosen = chosen, self._choose(parts)
            if stop is not None or not all(chosen):
                return self._end(stop or self._too_few(parts))
            if self._attempts:
                os.environ[SlurmStep.step_restart.name] = str(len(self._attempts))
                say([self._restart_line(parts, before, chosen)])
            self._watch.start(chosen[0], parts[0].healthy())
            begun = time.monotonic()
            ended = run_step(
                command(self._options.command, self._wanted, chosen),
                self._signals,
                is_error,
                self._end_step,
                self._logs,
                first_ranks(self._wanted, chosen) if len(chosen) > 1 else None,
            )
            if ended.status == 0:
                if self._attempts:
                    say([f"ended with status 0, after {_count(len(self._attempts), 'restart')}"])
                return 0
            layout = _names(one.layout(nodes) for one, nodes in zip(self._wanted, chosen))
            failure = ended.output.failure(ended.status, layout)
            self._attempts.append(Attempt(failure, time.monotonic() - begun, _names(chosen)))
            stop = self._why_stop()
            if stop is not None:
                return self._end(stop)
            self._pause()
            self._await_end(ended)
            parts, stop = self._look()

    def _choose(self, parts: Sequence[Nodes]) -> Chosen:
        """Returns the nodes of each component; none where there are too few."""
        return tuple(
            choose(part.healthy(), self._suspects, one.nodes or 0, one.least)
            for one, part in zip(self._wanted, parts)
        )

    def _why_stop(self) -> Optional[Stop]:
        """Returns why the last failure ends it all; None where a restart is worth it."""
        failure, nodes = self._attempts[-1].failure, self._attempts[-1].nodes
        if self._signals.received is not None:
            return Stop(f"{self._signals.name} has come")
        stop = why_not_again(failure)
        if stop is not None:
            return stop
        if len(self._attempts) > self._options.restarts:
            # by the signal that announced the job's end, where no task saves at one
            ending = self._look()[1] if self._options.requeue and failure.signal else None
            if ending is not None and ending.requeue:
                return ending
            same = ""
            if len(self._attempts) > 1 and same_again(self._attempts):
                same = ", and it was the same each time"
            return Stop(f"--restarts {self._options.restarts} is used up{same}")
        if failure.kind == "node" and failure.node is not None:
            self._suspects[failure.node] = "failed"
        elif same_again(self._attempts):
            before = self._attempts[-2].failure
            spare = len(self._seen) > len(nodes)
            tried = failure.suspect is None or failure.suspect in self._suspects
            if tried or failure.suspect != before.suspect or not spare:
                return Stop("it was the same each time, without any progress in between")
            # it may be the node: once more without it, where there is another
            self._suspects[str(failure.suspect)] = "the same failure twice"
        return None

    def _look(self) -> Tuple[List[Nodes], Optional[Stop]]:
        """Returns the nodes of each component, and why the job ends, if it does.

        A controller that is restarted answers nothing for a while.
        """
        none = [Nodes((), {})] * len(self._wanted)
        until = time.monotonic() + _CONTROLLER_SECONDS
        while not self._signals.wait(0):
            try:
                jobs = scontrol.show_components(self._job_id, _ANSWER_SECONDS)
                stop = self._why_ending(jobs)
                # the first start is the batch file's own affair
                if stop is not None and (self._attempts or "JobState" not in jobs[0]):
                    return none, stop
                jobs = jobs[: len(self._wanted)]
                if len(jobs) < len(self._wanted):
                    return none, Stop(
                        f"job {self._job_id} is not heterogeneous: --ps-nodes is for the second "
                        "component of one, as slurm-resolver sbatch --ps-nodes asks for it"
                    )
                if len(jobs) > 1:
                    self._own_job_ids = [job["JobId"] for job in jobs]
                return [nodes_of(job, _ANSWER_SECONDS) for job in jobs], None
            except OSError as error:
                if "Invalid job id" in str(error):
                    return none, Stop(f"Slurm does not know job {self._job_id}")
                if time.monotonic() > until:
                    return none, Stop(f"Slurm does not answer ({error})")
            self._signals.wait(5.0)
        return none, Stop(f"{self._signals.name} has come")

    def _why_ending(self, jobs: Sequence[Mapping[str, str]]) -> Optional[Stop]:
        """Returns why Slurm is about to end a component, and so the job; None where it is not."""
        for number, job in enumerate(jobs[: len(self._wanted)]):
            # the batch file is the first one's alone
            fields = job if number == 0 else {**job, "BatchHost": ""}
            state = job.get("JobState", "")
            if number and state not in scontrol.RUNNING_STATES:
                return Stop(f"component {number} of the job is {state or 'gone'}", requeue=True)
            stop = job_is_ending(fields, self._job_restarts, self._options.least_time, time.time())
            if stop is not None:
                return stop
        return None

    def _pause(self) -> None:
        """Waits for as long as the user asked for, but no longer than the job has still to run.

        Slurm tells this process nothing of a preemption: its signal is for the steps.
        """
        until = time.monotonic() + self._options.pause
        while time.monotonic() < until:
            if self._signals.wait(min(_LOOK_SECONDS, until - time.monotonic())):
                return
            if time.monotonic() < until and self._look()[1] is not None:
                return

    def _await_end(self, ended: EndedStep) -> None:
        """Waits until nothing of the step is left, which would hold ports and GPUs."""
        step: Optional[str] = "of this job"
        until = time.monotonic() + _STEP_END_SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                step = next(iter(self._steps(ended.pid)), None)
                if step is None:
                    return
            if self._signals.wait(_POLL_SECONDS):
                return
        say([f"step {step} has not ended after {_STEP_END_SECONDS:.0f} s; srun waits for it"])

    def _steps(self, pid: int) -> List[str]:
        """Returns the ids of the step of this srun, one a component."""
        found = [scontrol.find_step(job, pid, _ANSWER_SECONDS) for job in self._own_job_ids]
        return [step for step in found if step is not None]

    def _end_step(self, pid: int) -> None:
        for job in self._own_job_ids:  # of which one may have been ended, or requeued alone
            with contextlib.suppress(OSError):  # srun ends, later
                step = scontrol.find_step(job, pid, _ANSWER_SECONDS)
                if step is not None:
                    scontrol.end_step(step, _ANSWER_SECONDS)

    def _restart_line(self, nodes: Sequence[Nodes], before: Chosen, chosen: Chosen) -> str:
        now = _names(chosen)
        out = [
            f"{name} ({self._why_out(name, nodes)})" for name in _names(before) if name not in now
        ]
        came = [name for name in now if name not in _names(before)]
        where = " and ".join(compress_hostlist(part) for part in chosen)
        parts = [f"now on {where}"]
        parts += [f"left out: {', '.join(out)}"] if out else []
        parts += [f"came in: {', '.join(came)}"] if came else []
        number = f"restart {len(self._attempts)} of {self._options.restarts}"
        failure = self._attempts[-1].failure.describe()
        return f"{number}; {'; '.join(parts)}; first failure: {failure}"

    def _why_out(self, name: str, parts: Sequence[Nodes]) -> str:
        nodes = next((part for part in parts if name in part.names), None)
        if nodes is None:
            return "no longer the job's"
        if name not in nodes.healthy():
            return nodes.states.get(name, "unknown to Slurm")
        return self._suspects.get(name, "not needed")

    def _too_few(self, parts: Sequence[Nodes]) -> Stop:
        healthy = _names(part.healthy() for part in parts)
        out = [
            f"{name} ({self._why_out(name, parts)})" for name in self._seen if name not in healthy
        ]
        without = f", without {', '.join(out)}" if out else ""
        number = self._choose(parts).index(())
        least, left = self._wanted[number].least, len(parts[number].healthy())
        hint = "" if self._options.min_nodes or number else "; --min-nodes lets it go on with fewer"
        of = " for the chief and the parameter servers" if number else ""
        told = f"{_count(left, 'healthy node')} left{of}{without}: expected {least} or more{hint}"
        return Stop(told, requeue=True)

    def _let_it_fail(self) -> None:
        """Keeps Slurm from holding a job that fails for good, where it would."""
        with contextlib.suppress(OSError):
            job = scontrol.show_job(self._job_id, _ANSWER_SECONDS)
            if scontrol.requeues_failures(job) and not is_preempted(dict(job)):
                scontrol.allow_requeue(self._job_id, False, _ANSWER_SECONDS)

    def _end(self, stop: Stop) -> int:
        """Says why nothing is started again, and what failed first; returns the exit status."""
        status, why = 1, stop.why
        lines = []
        if self._attempts:
            last, first = self._attempts[-1].failure, self._attempts[0].failure
            status = last.status
            lines.append(f"first failure: {last.describe()}")
            if not first.is_same(last):
                lines.append(f"of all starts the first failure: {first.describe()}")
        if self._options.requeue and stop.requeue:
            status = REQUEUE_STATUS
            why += f"; exit status {status} asks the batch file to requeue the job"
        elif self._signals.received is None:
            self._let_it_fail()
        restarts = len(self._attempts) - 1
        again = "" if restarts < 0 else " again"
        again += f" after {_count(restarts, 'restart')}" if restarts > 0 else ""
        say([f"not started{again}: {why}", *lines])
        return status


def _names(parts: Iterable[Sequence[str]]) -> Tuple[str, ...]:
    return tuple(name for part in parts for name in part)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
